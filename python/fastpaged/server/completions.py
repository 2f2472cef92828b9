"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from fastpaged.server.completion_answer import CompletionAnswer
from fastpaged.server.completion_request import CompletionRequest
from fastpaged.server.generation import Call
from fastpaged.server.prompts import as_prompts, engine_prompt

router = APIRouter(tags=["generation"])


@router.post("/v1/completions", response_model=None)
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Goes on from a prompt, or from each of several."""
    call = Call(request, body, "cmpl-")
    params = body.params(call.service.engine.get_default_sampling_params())

    async def prompts() -> list[dict[str, Any]]:
        given = as_prompts(body.prompt)
        return [await engine_prompt(call.service, prompt, body, params.max_tokens) for prompt in given]

    return await call.answered(params, prompts, CompletionAnswer(call, body, params.n))
