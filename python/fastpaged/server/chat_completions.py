"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from fastpaged.server.chat_answer import ChatAnswer
from fastpaged.server.chat_request import ChatCompletionRequest
from fastpaged.server.conversation import conversation_prompt
from fastpaged.server.generation import Call
from fastpaged.server.prompts import cut_prompt

router = APIRouter(tags=["generation"])


@router.post("/v1/chat/completions", response_model=None)
async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
    """Answers the last message of a conversation."""
    call = Call(request, body, "chatcmpl-")
    service = call.service
    params = body.sampling_params(
        service.engine.get_default_sampling_params(), max_tokens=body.most_tokens, logprobs=body.num_logprobs
    )

    async def prompts() -> list[dict[str, Any]]:
        prompt = await conversation_prompt(service, body, add_special_tokens=bool(body.add_special_tokens))
        return [cut_prompt(service, prompt, body, params.max_tokens)]

    return await call.answered(params, prompts, ChatAnswer(call, body, params.n))
