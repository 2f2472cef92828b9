"""Call: the requests of one call to a generating route, from the body's prompts to the engine's outputs."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol

from fastpaged.server.client_watch import while_client_stays
from fastpaged.server.errors import ApiError
from fastpaged.server.event_stream import EventStream, compact
from fastpaged.server.json_answer import json_answer
from fastpaged.server.keep_alive import with_comments
from fastpaged.server.merged_outputs import Indexed, merged
from fastpaged.server.request_report import RequestReport
from fastpaged.server.service import Service

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from fastapi import Request, Response

    from fastpaged.outputs import RequestOutput
    from fastpaged.sampling_params import SamplingParams
    from fastpaged.server.generation_fields import GenerationFields
    from fastpaged.server.usage import Usage

_REQUEST_ID = re.compile(r"[!-~]{1,200}")
_PART = " "  # between a call's id and a number, in the ids of its requests: in no id that somebody gives


class Answer(Protocol):
    """What is made of a call's outputs: one body, or events."""

    def body(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        """Of each request's last output."""

    def events(self) -> AsyncGenerator[bytes, None]:
        """Of all that Call.outputs() yields."""


class Call:
    """id: what the answer is called. Making one raises ApiError for a body that cannot be served here."""

    def __init__(self, request: Request, body: GenerationFields, prefix: str) -> None:
        """prefix: of the id."""
        self.service = Service.of(request)
        self.model = self.service.check_model(body.model)
        body.check_served()
        self.service.note_unknown(body.unknown)
        self.id = prefix + _given_id(request, body, prefix)
        self._request = request
        self._body = body
        self._prompts: list[Any] = []
        self._engine_ids: list[str] = []

    async def answered(
        self, params: SamplingParams, make_prompts: Callable[[], Coroutine[Any, Any, list[Any]]], answer: Answer
    ) -> Response:
        """The response, of which a stream's first event is there: what was raised before it has a status. make_prompts:
        as AsyncLLMEngine.generate() takes them."""
        self._params = params
        self._engine_ids = self.service.begin(self.id)
        receive = self._request.receive
        try:
            self._prompts = await while_client_stays(receive, make_prompts())
            if self._body.stream:
                return await self._stream(answer.events())
            outputs = await while_client_stays(receive, self._finished())
            return await json_answer(outputs, answer.body, self._headers)
        except BaseException:
            self._end()  # if it has not come to outputs()
            raise

    def _end(self) -> None:
        self.service.end(self.id, self._engine_ids)

    async def outputs(self) -> AsyncGenerator[Indexed, None]:
        """All its requests' as they come. An output that tells of a failure is an ApiError instead."""
        terms = self._body.terms(self.service.settings.max_request_seconds)
        count = len(self._prompts)
        ids = [self.id] if count == 1 else [f"{self.id}{_PART}{index}" for index in range(count)]
        self._engine_ids += ids
        requests = [
            self._request_outputs(prompt, request_id, terms)
            for request_id, prompt in zip(ids, self._prompts, strict=True)
        ]
        last: list[RequestOutput | None] = [None] * len(ids)
        failure: Exception | None = None
        began = time.monotonic()
        try:
            async with aclosing(merged(requests)) as outputs:
                async for item in outputs:
                    last[item.place] = item.output
                    _check_computed(item.output)
                    yield item
        except Exception as error:
            failure = error
            raise
        finally:
            self._end()
            for name, output in zip(ids, last, strict=True):
                self._report(name, output, failure, began)

    async def _request_outputs(
        self, prompt: Any, request_id: str, terms: dict[str, Any]
    ) -> AsyncGenerator[RequestOutput, None]:
        """Of one request. If the call was aborted before its turn came, it is aborted as soon as it is there."""
        engine = self.service.engine
        aborting = None
        if self.id in self.service.unwanted:
            aborting = asyncio.ensure_future(engine.abort(request_id))  # whose turn comes when generate() waits
        async with aclosing(engine.generate(prompt, self._params, request_id, **terms)) as outputs:
            async for output in outputs:
                yield output
        if aborting is not None:
            await aborting

    def _report(self, name: str, output: RequestOutput | None, error: Exception | None, began: float) -> None:
        """To whoever is told of every request. What ended the call is no matter of a request that had ended before."""
        if output is not None and output.finished and not isinstance(error, ApiError):
            error = None
        if output is None and error is not None:
            return  # it never began: that is told with the answer's status
        self._request.state.is_reported = True
        if self.service.readers:
            stream = bool(self._body.stream)
            report = RequestReport.of(
                name, self.model, self._params, stream=stream, began=began, output=output, error=error
            )
            for reader in self.service.readers:
                reader.tell(report, self._request.headers)

    def head(self, kind: str) -> dict[str, Any]:
        """What every answer and every event of it begins with. kind: its "object"."""
        service = self.service
        return {
            "id": self.id,
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
            "system_fingerprint": service.fingerprint,
        }

    def event_head(self, kind: str) -> str:
        """The beginning of every event, up to its choices."""
        return f'data: {compact(self.head(kind))[:-1]},"choices":['

    def event_tail(self, usage: Usage) -> str:
        """The end of an event with choices."""
        if not self.includes_usage:
            return "]}\n\n"
        return f'],"usage":{compact(usage.body() if self._body.has_continuous_usage else None)}}}\n\n'

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the tokens used."""
        return self._body.includes_usage or self.service.settings.force_include_usage

    @property
    def _headers(self) -> dict[str, str]:
        return {"X-Request-Id": self.id} if self.service.settings.enable_request_id_headers else {}

    def prompt_text(self, output: RequestOutput) -> str:
        """As it was given, or what its token ids say."""
        if output.prompt is not None:
            return output.prompt
        if not self._params.detokenize:
            return ""
        skips = self._params.skip_special_tokens
        return self.service.engine.get_tokenizer().decode(output.prompt_token_ids, skip_special_tokens=skips)

    def token_text(self, token_id: int) -> str | None:
        """Of a token by itself; None where there are no texts."""
        return self.service.engine.get_tokenizer().token_text(token_id) if self._params.detokenize else None

    async def _stream(self, events: AsyncGenerator[bytes, None]) -> EventStream:
        interval = self.service.settings.sse_keep_alive_interval
        if interval > 0:
            events = with_comments(events, interval)
        try:
            first = await while_client_stays(self._request.receive, _next(events))
        except BaseException:
            await events.aclose()
            raise
        return EventStream(first, events, self._headers)

    async def _finished(self) -> list[RequestOutput]:
        last: dict[int, RequestOutput] = {}
        async with aclosing(self.outputs()) as outputs:
            async for index, output in outputs:
                last[index] = output
        return [last[index] for index in range(len(self._prompts))]


async def _next(events: AsyncGenerator[bytes, None]) -> bytes:
    return await events.__anext__()


def _check_computed(output: RequestOutput) -> None:
    for answer in output.outputs:
        if answer.finish_reason == "error":
            raise ApiError(
                500, f"request {output.request_id!r} failed while it was computed; the server's log says why"
            )


def _given_id(request: Request, body: GenerationFields, prefix: str) -> str:
    """The body's, or that of a header, which a proxy may have put there: it is no reason to refuse anything."""
    given = body.request_id
    if given is not None:
        if _REQUEST_ID.fullmatch(given) is None:
            raise ApiError(
                400, f"request_id must be 1 to 200 visible ASCII characters, got {given!r:.80}", param="request_id"
            )
        return given
    named = request.headers.get("x-request-id", "")
    if _REQUEST_ID.fullmatch(named) is None:
        return uuid.uuid4().hex
    return f"{named}-{uuid.uuid4().hex[:8]}" if prefix + named in Service.of(request).calls else named
