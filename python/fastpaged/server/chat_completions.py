"""POST /v1/chat/completions."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from fastpaged.server.chat_logprobs import ChatLogprobs
from fastpaged.server.chat_request import ChatCompletionRequest
from fastpaged.server.client_watch import while_client_stays
from fastpaged.server.conversation import conversation_prompt
from fastpaged.server.generation import Call
from fastpaged.server.json_answer import json_answer
from fastpaged.server.logprobs_body import prompt_logprobs_body
from fastpaged.server.prompts import cut_prompt
from fastpaged.server.service import Service
from fastpaged.server.usage import Usage
from fastpaged.tokenizer.chat_messages import joined_text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from fastpaged.outputs import CompletionOutput, RequestOutput

router = APIRouter(tags=["generation"])


@router.post("/v1/chat/completions", response_model=None)
async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
    """Answers the last message of a conversation."""
    service = Service.of(request)
    service.check_model(body.model)
    body.check_served()
    service.note_unknown(body.unknown)
    params = body.sampling_params(
        service.engine.get_default_sampling_params(), max_tokens=body.most_tokens, logprobs=body.num_logprobs
    )
    service.check_open()
    with service.preparing(request):
        making = conversation_prompt(service, body, add_special_tokens=bool(body.add_special_tokens))
        prompt = await while_client_stays(request.receive, making)
        call = Call(request, body, "chatcmpl-", [cut_prompt(service, prompt, body, params.max_tokens)], params)
        answer = _Answer(call, body, params.n)
        if body.stream:
            return await call.stream(answer.events())
        return await json_answer(await call.finished(), answer.body, call.headers)


class _Answer:
    """What is made of one call's outputs."""

    def __init__(self, call: Call, body: ChatCompletionRequest, n: int) -> None:
        self._call = call
        self._body = body
        self._n = n
        self._usage = Usage()
        self._role = _role(call.service, body)
        is_echoed = body.echo and body.messages[-1].get("role") == self._role
        self._echo = str(joined_text(body.messages[-1].get("content")) or "") if is_echoed else ""
        self._logprobs = ChatLogprobs(
            call.service.engine.get_tokenizer(),
            body.num_logprobs or 0,
            as_ids=bool(body.return_tokens_as_token_ids),
        )

    def body(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        """The whole answer at once."""
        [output] = outputs
        self._usage.note(0, output)
        answer = {
            **self._call.head("chat.completion"),
            "choices": [self._choice(choice) for choice in output.outputs],
            "usage": self._usage.body(),
        }
        if self._body.prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_logprobs_body(output)
        if self._body.return_token_ids:
            answer["prompt_token_ids"] = output.prompt_token_ids
        return answer

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The same in pieces: each choice's role, its text, its end."""
        head = json.dumps(self._call.head("chat.completion.chunk"), separators=(",", ":"))[:-1] + ',"choices":['
        async with aclosing(self._call.outputs()) as outputs:
            has_begun = False
            async for _, output in outputs:
                self._usage.note(0, output)
                usage = f',"usage":{json.dumps(self._usage.body())}' if self._body.has_continuous_usage else ""
                if not has_begun:
                    has_begun = True
                    for index in range(self._n):
                        yield f"data: {head}{self._beginning(index, output)}]{usage}}}\n\n".encode()
                for answer in output.outputs:
                    yield f"data: {head}{self._piece(answer)}]{usage}}}\n\n".encode()
        if self._call.includes_usage:
            yield f'data: {head}],"usage":{json.dumps(self._usage.body())}}}\n\n'.encode()

    def _beginning(self, index: int, output: RequestOutput) -> str:
        choice: dict[str, Any] = {
            "index": index,
            "delta": {"role": self._role, "content": self._echo},
            "logprobs": None,
            "finish_reason": None,
        }
        if self._body.return_token_ids:
            choice["prompt_token_ids"] = output.prompt_token_ids
        return json.dumps(choice, separators=(",", ":"))

    def _piece(self, answer: CompletionOutput) -> str:
        if answer.finish_reason is None and not self._body.logprobs and not self._body.return_token_ids:
            return (
                f'{{"index":{answer.index},"delta":{{"content":{json.dumps(answer.text)}}},'
                '"logprobs":null,"finish_reason":null}'
            )
        choice: dict[str, Any] = {
            "index": answer.index,
            "delta": {"content": answer.text},
            "logprobs": self._choice_logprobs(answer),
            "finish_reason": answer.finish_reason,
        }
        return json.dumps(choice | self._extras(answer), separators=(",", ":"))

    def _choice(self, answer: CompletionOutput) -> dict[str, Any]:
        choice = {
            "index": answer.index,
            "message": {
                "role": self._role,
                "content": self._echo + answer.text,
                "refusal": None,
                "reasoning": None,
                "tool_calls": [],
            },
            "logprobs": self._choice_logprobs(answer),
            "finish_reason": answer.finish_reason,
        }
        return choice | self._extras(answer)

    def _extras(self, answer: CompletionOutput) -> dict[str, Any]:
        """What OpenAI's API does not have."""
        extras: dict[str, Any] = {}
        if answer.finish_reason is not None:
            extras["stop_reason"] = answer.stop_reason
            extras["seed"] = answer.seed
        if self._body.return_token_ids:
            extras["token_ids"] = answer.token_ids
        return extras

    def _choice_logprobs(self, answer: CompletionOutput) -> dict[str, Any] | None:
        if not self._body.logprobs or answer.logprobs is None:
            return None
        return self._logprobs.body(answer.logprobs, answer.token_ids)


def _role(service: Service, body: ChatCompletionRequest) -> str:
    """Whoever speaks: where the prompt begins no answer, still the one who spoke last."""
    if body.template_arguments["add_generation_prompt"]:
        return service.settings.response_role
    return str(body.messages[-1].get("role"))
