"""BatchFile: requests in a file, a line of JSON each, and their answers in another, which grows as they come."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections import deque
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from fastpaged.errors import InvalidRequestError
from fastpaged.server.batch_line import read_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastapi import FastAPI

    from fastpaged.engine.async_llm_engine import AsyncLLMEngine
    from fastpaged.server.batch_line import BatchLine

_BEGIN = b'{"id": "batch_req_'  # of every line that we write


class BatchFile:
    """source: lines {"custom_id", "method": "POST", "url", "body"}, as OpenAI's batches have them. target: lines
    {"id", "custom_id", "response": {"status_code", "request_id", "body"} or null, "error": {"code", "message"} or
    null}, in the order in which they are answered; what it holds already is not asked again.
    """

    def __init__(self, source: str, target: str) -> None:
        """Raises InvalidRequestError for files that cannot be what they should be, OSError for a target that cannot be
        written."""
        self.target = Path(target)
        self.lines = read_lines(Path(source))
        if self.target.exists() and self.target.samefile(source):
            raise InvalidRequestError(f"the output must be another file than the input, got {target!r} for both")
        self._failed = _answered(self.target)  # by custom_id
        with self.target.open("ab"):
            pass  # it can be written, or that is known before a model is loaded

    @property
    def pending(self) -> list[BatchLine]:
        """Not answered yet, in order."""
        return [line for line in self.lines if line.custom_id not in self._failed]

    @property
    def num_failed(self) -> int:
        """Of the requests answered up to now, by an earlier run too: those whose answer is an error."""
        return sum(self._failed.get(line.custom_id, False) for line in self.lines)

    async def run(self, app: FastAPI, at_once: int, on_answer: Callable[[], None]) -> None:
        """Has the app answer what is pending, so many at once. An answer is in the file before on_answer is called.

        What finds too many waiting is asked again behind all others, with half as many at once. Raises EngineDeadError
        if the engine dies; what is not in the file then was not answered.
        """
        engine: AsyncLLMEngine = app.state.service.engine
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        with self.target.open("a", encoding="utf-8") as out:
            async with httpx.AsyncClient(transport=transport, base_url="http://batch", timeout=None) as client:

                def write(line: BatchLine, answer: dict[str, Any]) -> None:
                    dead = engine.dead_error
                    if dead is not None and _is_failure(answer):
                        raise dead
                    out.write(json.dumps(answer) + "\n")
                    out.flush()
                    self._failed[line.custom_id] = _is_failure(answer)
                    on_answer()

                lines: Sequence[BatchLine] = self.pending
                while lines:
                    lines = await _answer_all(client, lines, at_once, write)
                    at_once //= 2


async def _answer_all(
    client: httpx.AsyncClient, lines: Sequence[BatchLine], at_once: int, write: Callable[[BatchLine, Any], None]
) -> list[BatchLine]:
    """Which were refused because of the others."""
    waiting = deque(lines)
    refused = []

    async def worker() -> None:
        while waiting:
            line = waiting.popleft()
            answer = await _ask(client, line)
            status = answer["response"] and answer["response"]["status_code"]
            if status == HTTPStatus.SERVICE_UNAVAILABLE and at_once > 1:
                refused.append(line)
            else:
                write(line, answer)

    workers = [asyncio.ensure_future(worker()) for _ in range(min(at_once, len(lines)))]
    try:
        await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        waiting.clear()  # a request that misses its cancellation (wait_for() of Python 3.11 does) is a worker's last
        for task in workers:
            task.cancel()
        ends = await asyncio.gather(*workers, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end
    return refused


async def _ask(client: httpx.AsyncClient, line: BatchLine) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "id": f"batch_req_{uuid.uuid4().hex}",
        "custom_id": line.custom_id,
        "response": None,
        "error": None,
    }
    if line.problem is not None:
        answer["error"] = {"code": "invalid_line", "message": line.problem}
        return answer
    response = await client.post(line.url, content=line.body, headers={"Content-Type": "application/json"})
    body = response.json()
    answer["response"] = {"status_code": response.status_code, "request_id": body.get("id"), "body": body}
    return answer


def _is_failure(answer: dict[str, Any]) -> bool:
    return answer["error"] is not None or answer["response"]["status_code"] != HTTPStatus.OK


def _answered(path: Path) -> dict[str, bool]:
    """What a run before has written: custom_id -> whether it failed. A last line that it could not write to the end is
    taken off the file."""
    if not path.exists():
        return {}
    data = path.read_bytes()
    whole, rest = data[: data.rfind(b"\n") + 1], data[data.rfind(b"\n") + 1 :]
    failed: dict[str, bool] = {}
    # Half a line is taken off only if it is half of one of ours: the file may be another by mistake.
    rows = whole.splitlines() + ([] if rest.startswith(_BEGIN[: len(rest)]) else [rest])
    for number, row in enumerate(rows, 1):
        try:
            answer = json.loads(row)
            failed[answer["custom_id"]] = _is_failure(answer)
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidRequestError(
                f"the output must be a new file, or that of an earlier run of this batch: line {number} of "
                f"{str(path)!r} is neither"
            ) from error
    if rest:
        os.truncate(path, len(whole))
    return failed
