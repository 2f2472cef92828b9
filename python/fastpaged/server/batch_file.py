"""BatchFile: requests in a file, a line of JSON each, and their answers in another, which grows as they come."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastapi import FastAPI

ROUTES = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")


@dataclass(frozen=True)
class BatchLine:
    """One request. problem: why it cannot even be asked; None: it can."""

    custom_id: str
    url: str
    body: dict[str, Any]
    problem: str | None = None


class BatchFile:
    """source: lines {"custom_id", "method": "POST", "url", "body"}, as OpenAI's batches have them. target: lines
    {"id", "custom_id", "response": {"status_code", "request_id", "body"} or null, "error": {"code", "message"} or
    null}, in the order in which they are answered; what it holds already is not asked again.
    """

    def __init__(self, source: str, target: str) -> None:
        """Raises InvalidRequestError for a file that cannot be read, and for a custom_id that is there twice."""
        self.target = Path(target)
        self.lines = list(_read(Path(source)))
        self.done = _answered(self.target)
        self.num_failed = 0

    @property
    def pending(self) -> list[BatchLine]:
        """Not answered yet, in order."""
        return [line for line in self.lines if line.custom_id not in self.done]

    async def run(self, app: FastAPI, at_once: int, on_answer: Callable[[], None]) -> None:
        """Has the app answer what is pending, so many at once. An answer is in the file before on_answer is called."""
        waiting = iter(self.pending)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        with self.target.open("a", encoding="utf-8") as out:
            async with httpx.AsyncClient(transport=transport, base_url="http://batch", timeout=None) as client:

                async def worker() -> None:
                    for line in waiting:
                        answer = await _ask(client, line)
                        self.num_failed += answer["error"] is not None or answer["response"]["status_code"] != 200
                        out.write(json.dumps(answer) + "\n")
                        out.flush()
                        on_answer()

                workers = [asyncio.ensure_future(worker()) for _ in range(at_once)]
                try:
                    await asyncio.gather(*workers)
                finally:
                    for task in workers:
                        task.cancel()
                    await asyncio.gather(*workers, return_exceptions=True)


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
    response = await client.post(line.url, json=line.body)
    body = response.json()
    answer["response"] = {"status_code": response.status_code, "request_id": body.get("id"), "body": body}
    return answer


def _read(path: Path) -> Iterator[BatchLine]:
    seen: dict[str, int] = {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"the input must be a file of lines of JSON, got {str(path)!r}: {error}") from error
    for number, row in enumerate(text.splitlines(), 1):
        if not row.strip():
            continue
        line = _line(row, number)
        if line.custom_id in seen:
            raise InvalidRequestError(
                f"custom_id must be another in every line, got {line.custom_id!r} in lines {seen[line.custom_id]} and "
                f"{number} of {str(path)!r}"
            )
        seen[line.custom_id] = number
        yield line


def _line(row: str, number: int) -> BatchLine:
    try:
        found = json.loads(row)
    except ValueError as error:
        return BatchLine(f"line-{number}", "", {}, f"line {number} is no JSON: {error}")
    if not isinstance(found, dict) or not isinstance(found.get("custom_id"), str) or not found["custom_id"]:
        return BatchLine(f"line-{number}", "", {}, f"line {number} must be an object with a custom_id, a string")
    name, url, body = found["custom_id"], found.get("url"), found.get("body")
    if found.get("method", "POST") != "POST" or url not in ROUTES:
        return BatchLine(name, "", {}, f"method and url must be POST and one of {', '.join(ROUTES)}, got {url!r}")
    if not isinstance(body, dict) or body.get("stream"):
        return BatchLine(name, "", {}, "body must be an object, without stream")
    return BatchLine(name, url, body)


def _answered(path: Path) -> set[str]:
    """What a run before has written. A last line that it could not write to the end is taken off the file."""
    if not path.exists():
        return set()
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    done = set()
    for number, row in enumerate(whole.splitlines(), 1):
        try:
            done.add(json.loads(row)["custom_id"])
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidRequestError(
                f"the output must be a new file, or that of an earlier run of this batch: line {number} of "
                f"{str(path)!r} is neither"
            ) from error
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    return done
