"""CompletionAnswer: what a call to /v1/completions gets, in one piece or in many."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from fastpaged.server.completion_logprobs import CompletionLogprobs
from fastpaged.server.event_stream import compact
from fastpaged.server.logprobs_body import prompt_logprobs_body
from fastpaged.server.usage import Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from fastpaged.outputs import CompletionOutput, RequestOutput
    from fastpaged.server.completion_request import CompletionRequest
    from fastpaged.server.generation import Call


class CompletionAnswer:
    """Choice j of prompt i has the index i * n + j."""

    def __init__(self, call: Call, body: CompletionRequest, n: int) -> None:
        self._call = call
        self._body = body
        self._n = n
        self._usage = Usage()
        self._logprobs: dict[int, CompletionLogprobs] = {}  # by choice
        self._begun: set[int] = set()  # choices that have told of their prompt

    def body(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        """The whole answer at once."""
        choices = []
        for index, output in enumerate(outputs):
            self._usage.note(index, output, counts_answers=not self._body.is_scoring)
            for answer in output.outputs:
                choice = self._choice(index, output, answer)
                if self._body.prompt_logprobs is not None:
                    choice["prompt_logprobs"] = prompt_logprobs_body(output, self._body.prompt_logprobs)
                choices.append(choice)
        return {**self._call.head("text_completion"), "choices": choices, "usage": self._usage.body()}

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The same in pieces: for each output of the engine an event for each choice with news."""
        head = self._call.event_head("text_completion")
        async with aclosing(self._call.outputs()) as outputs:
            async for index, output in outputs:
                self._usage.note(index, output, counts_answers=not self._body.is_scoring)
                tail = self._call.event_tail(self._usage)
                pieces = [f"{head}{self._piece(index, output, answer)}{tail}" for answer in output.outputs]
                yield "".join(pieces).encode()
        if self._call.includes_usage:
            yield f'{head}],"usage":{compact(self._usage.body())}}}\n\n'.encode()

    def _piece(self, index: int, output: RequestOutput, answer: CompletionOutput) -> str:
        if self._body.is_plain and answer.finish_reason is None:
            return (
                f'{{"index":{index * self._n + answer.index},"text":{compact(answer.text)},'
                '"logprobs":null,"finish_reason":null,"stop_reason":null}'
            )
        return compact(self._choice(index, output, answer))

    def _choice(self, index: int, output: RequestOutput, answer: CompletionOutput) -> dict[str, Any]:
        place = index * self._n + answer.index
        is_new = place not in self._begun
        self._begun.add(place)
        echoes = bool(self._body.echo) and is_new
        is_scoring = self._body.is_scoring
        text = self._call.prompt_text(output) if echoes else ""
        choice: dict[str, Any] = {
            "index": place,
            "text": text if is_scoring else text + answer.text,
            "logprobs": self._choice_logprobs(place, output, answer, echoes=echoes),
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
        }
        if is_scoring and answer.finish_reason == "stop":  # by the token that nobody asked for
            choice |= {"finish_reason": "length", "stop_reason": None}
        if answer.finish_reason is not None and answer.seed is not None:
            choice["seed"] = answer.seed
        if self._body.return_token_ids:
            choice["token_ids"] = [] if is_scoring else answer.token_ids
            if is_new:
                choice["prompt_token_ids"] = output.prompt_token_ids
        return choice

    def _choice_logprobs(
        self, place: int, output: RequestOutput, answer: CompletionOutput, *, echoes: bool
    ) -> dict[str, list[Any]] | None:
        wanted = self._body.num_logprobs
        if wanted is None:
            return None
        if place not in self._logprobs:
            self._logprobs[place] = CompletionLogprobs(
                wanted, as_ids=bool(self._body.return_tokens_as_token_ids), token_text=self._call.token_text
            )
        entries: list[Any] = []
        token_ids: list[int] = []
        if echoes and output.prompt_logprobs is not None:
            entries += output.prompt_logprobs
            token_ids += output.prompt_token_ids
        if answer.logprobs is not None and not self._body.is_scoring:
            entries += answer.logprobs
            token_ids += answer.token_ids
        return self._logprobs[place].body(token_ids, entries)
