"""POST /v1/completions."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from fastpaged.server.completion_logprobs import CompletionLogprobs
from fastpaged.server.completion_request import CompletionRequest
from fastpaged.server.generation import Call
from fastpaged.server.logprobs_body import prompt_logprobs_body
from fastpaged.server.prompts import as_prompts, engine_prompt
from fastpaged.server.service import Service
from fastpaged.server.usage import Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from fastpaged.outputs import CompletionOutput, RequestOutput

router = APIRouter(tags=["generation"])


@router.post("/v1/completions", response_model=None)
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Goes on from a prompt, or from each of several."""
    service = Service.of(request)
    service.check_open()
    service.check_model(body.model)
    body.check_served()
    params = body.params(service.engine.get_default_sampling_params())
    prompts = [await engine_prompt(service, prompt, body) for prompt in as_prompts(body.prompt)]
    call = Call(request, body, "cmpl-", prompts, params)
    answer = _Answer(call, body, params.n)
    if body.stream:
        return await call.stream(answer.events())
    return JSONResponse(answer.body(await call.finished()), headers=call.headers)


class _Answer:
    """What is made of one call's outputs. Choice j of prompt i has the index i * n + j."""

    def __init__(self, call: Call, body: CompletionRequest, n: int) -> None:
        self._call = call
        self._body = body
        self._n = n
        self._usage = Usage()
        self._logprobs: dict[int, CompletionLogprobs] = {}  # by choice
        self._begun: set[int] = set()  # choices whose prompt was echoed
        self._head = call.head("text_completion")

    def body(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        """The whole answer at once."""
        choices = []
        for index, output in enumerate(outputs):
            self._usage.note(index, output, counts_answers=not self._body.is_scoring)
            for answer in output.outputs:
                choice = self._choice(index, output, answer)
                if self._body.prompt_logprobs is not None:
                    choice["prompt_logprobs"] = prompt_logprobs_body(output)
                choices.append(choice)
        return {**self._head, "choices": choices, "usage": self._usage.body()}

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The same in pieces."""
        head = json.dumps(self._head, separators=(",", ":"))[:-1] + ',"choices":['
        plain = not (self._body.echo or self._body.logprobs is not None or self._body.return_token_ids)
        async with aclosing(self._call.outputs()) as outputs:
            async for index, output in outputs:
                self._usage.note(index, output, counts_answers=not self._body.is_scoring)
                usage = f',"usage":{json.dumps(self._usage.body())}' if self._body.has_continuous_usage else ""
                for answer in output.outputs:
                    if plain and answer.finish_reason is None:
                        choice = (
                            f'{{"index":{index * self._n + answer.index},"text":{json.dumps(answer.text)},'
                            '"logprobs":null,"finish_reason":null,"stop_reason":null}'
                        )
                    else:
                        choice = json.dumps(self._choice(index, output, answer), separators=(",", ":"))
                    yield f"data: {head}{choice}]{usage}}}\n\n".encode()
        if self._body.includes_usage:
            yield f'data: {head}],"usage":{json.dumps(self._usage.body())}}}\n\n'.encode()

    def _choice(self, index: int, output: RequestOutput, answer: CompletionOutput) -> dict[str, Any]:
        place = index * self._n + answer.index
        echoes = bool(self._body.echo) and place not in self._begun
        self._begun.add(place)
        prompt_ids = list(output.prompt_token_ids) if echoes else []
        scoring = self._body.is_scoring
        text = self._call.prompt_text(output) if echoes else ""
        choice: dict[str, Any] = {
            "index": place,
            "text": text if scoring else text + answer.text,
            "logprobs": self._choice_logprobs(place, output, answer, prompt_ids),
            "finish_reason": "length" if scoring and answer.finish_reason else answer.finish_reason,
            "stop_reason": None if scoring else answer.stop_reason,
        }
        if answer.finish_reason is not None and answer.seed is not None:
            choice["seed"] = answer.seed
        if self._body.return_token_ids:
            choice["prompt_token_ids"] = output.prompt_token_ids
            choice["token_ids"] = [] if scoring else answer.token_ids
        return choice

    def _choice_logprobs(
        self, place: int, output: RequestOutput, answer: CompletionOutput, prompt_ids: list[int]
    ) -> dict[str, Any] | None:
        wanted = self._body.num_logprobs
        if wanted is None or answer.logprobs is None:
            return None
        if place not in self._logprobs:
            as_ids = bool(self._body.return_tokens_as_token_ids)
            self._logprobs[place] = CompletionLogprobs(wanted, as_ids=as_ids)
        entries: list[Any] = list(output.prompt_logprobs or ()) if prompt_ids else []
        token_ids = prompt_ids if entries else []
        if not self._body.is_scoring:
            entries += list(answer.logprobs)
            token_ids = token_ids + answer.token_ids
        return self._logprobs[place].body(entries, token_ids, self._call.token_text)
