"""ChatAnswer: what a call to /v1/chat/completions gets, in one piece or in many."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from fastpaged.server.chat_logprobs import ChatLogprobs
from fastpaged.server.event_stream import compact
from fastpaged.server.logprobs_body import prompt_logprobs_body
from fastpaged.server.usage import Usage
from fastpaged.tokenizer.chat_messages import joined_text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from fastpaged.outputs import CompletionOutput, RequestOutput
    from fastpaged.server.chat_request import ChatCompletionRequest
    from fastpaged.server.generation import Call
    from fastpaged.server.service import Service


class ChatAnswer:
    """Of one conversation, with n choices."""

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
        head = self._call.event_head("chat.completion.chunk")
        async with aclosing(self._call.outputs()) as outputs:
            has_begun = False
            async for _, output in outputs:
                self._usage.note(0, output)
                pieces = [self._piece(answer) for answer in output.outputs]
                if not has_begun:
                    has_begun = True
                    pieces[:0] = [self._beginning(index, output) for index in range(self._n)]
                tail = self._call.event_tail(self._usage)
                yield "".join(f"{head}{piece}{tail}" for piece in pieces).encode()
        if self._call.includes_usage:
            yield f'{head}],"usage":{compact(self._usage.body())}}}\n\n'.encode()

    def _beginning(self, index: int, output: RequestOutput) -> str:
        choice: dict[str, Any] = {
            "index": index,
            "delta": {"role": self._role, "content": self._echo},
            "logprobs": None,
            "finish_reason": None,
        }
        if self._body.return_token_ids:
            choice["prompt_token_ids"] = output.prompt_token_ids
        return compact(choice)

    def _piece(self, answer: CompletionOutput) -> str:
        if answer.finish_reason is None and not self._body.logprobs and not self._body.return_token_ids:
            return (
                f'{{"index":{answer.index},"delta":{{"content":{compact(answer.text)}}},'
                '"logprobs":null,"finish_reason":null}'
            )
        choice: dict[str, Any] = {
            "index": answer.index,
            "delta": {"content": answer.text},
            "logprobs": self._choice_logprobs(answer),
            "finish_reason": answer.finish_reason,
        }
        return compact(choice | self._extras(answer))

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
