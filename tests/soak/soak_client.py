"""A client of the soak: asks, reads or leaves, and counts what became of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import aiohttp
from soak_requests import SoakRequest


class WrongAnswerError(AssertionError):
    """An answer that nobody disturbed is not that of the same request offline."""


class SoakClient:
    """One of many that share the counts. Counts: "right", "left", "aborted", "failed"."""

    def __init__(
        self, session: aiohttp.ClientSession, requests: list[SoakRequest], counts: Counter[str], seed: int
    ) -> None:
        self._session = session
        self._requests = requests
        self._counts = counts
        self._rng = random.Random(seed)

    async def ask(self) -> None:
        """One request, from its beginning to its end."""
        rng, request = self._rng, self._rng.choice(self._requests)
        streams = request.may_stream and rng.random() < 0.7
        leaves_after = rng.randrange(1, 12) if rng.random() < 0.15 else None
        body = {"model": "soaked", "stream": streams, **request.body}
        name = f"soak-{rng.getrandbits(64):x}"
        self._counts["asked"] += 1
        async with self._session.post("/v1/completions", json=body | {"request_id": name}) as response:
            if response.status != 200:
                await self._note_error(response.status, await response.json())
            elif streams:
                await self._read_stream(request, response, leaves_after, name)
            else:
                answer = await response.json()
                self._check(request, {choice["index"]: choice for choice in answer["choices"]})

    async def _read_stream(
        self, request: SoakRequest, response: aiohttp.ClientResponse, leaves_after: int | None, name: str
    ) -> None:
        choices: dict[int, dict[str, Any]] = {}
        num_events = 0
        async for line in response.content:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                self._check(request, choices)
                return
            event = json.loads(line[6:])
            if "error" in event:
                await self._note_error(event["error"]["code"], event)
                return
            for choice in event["choices"]:
                known = choices.setdefault(choice["index"], {"text": ""})
                known["text"] += choice["text"]
                known["finish_reason"] = choice["finish_reason"]
            num_events += 1
            if num_events == leaves_after:
                if self._rng.random() < 0.5:
                    self._counts["left"] += 1
                    response.close()
                    return
                async with self._session.post("/abort", json={"request_id": name}) as aborted:
                    assert aborted.status == 200
        raise WrongAnswerError(f"a stream ended without [DONE]: {request.body}")

    async def _note_error(self, status: int, body: dict[str, Any]) -> None:
        if status != 500:
            raise WrongAnswerError(f"{status}: {body}")
        self._counts["failed"] += 1

    def _check(self, request: SoakRequest, choices: dict[int, dict[str, Any]]) -> None:
        texts = [choices[index]["text"] for index in sorted(choices)]
        if any(choice["finish_reason"] == "abort" for choice in choices.values()):
            self._counts["aborted"] += 1
            if not all(whole.startswith(text) for text, whole in zip(texts, request.texts, strict=False)):
                raise WrongAnswerError(f"{request.body}: {texts} does not begin {request.texts}")
            return
        if texts != request.texts:
            raise WrongAnswerError(f"{request.body}: {texts}, offline {request.texts}")
        self._counts["right"] += 1
