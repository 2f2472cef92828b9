"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from fastpaged.server.client_watch import while_client_stays
from fastpaged.server.completion_answer import CompletionAnswer
from fastpaged.server.completion_request import CompletionRequest
from fastpaged.server.generation import Call
from fastpaged.server.json_answer import json_answer
from fastpaged.server.prompts import as_prompts, engine_prompt
from fastpaged.server.service import Service

router = APIRouter(tags=["generation"])


@router.post("/v1/completions", response_model=None)
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Goes on from a prompt, or from each of several."""
    service = Service.of(request)
    service.check_model(body.model)
    body.check_served()
    service.note_unknown(body.unknown)
    params = body.params(service.engine.get_default_sampling_params())
    service.check_open()
    with service.preparing(request):
        making = _engine_prompts(service, body, params.max_tokens)
        prompts = await while_client_stays(request.receive, making)
        call = Call(request, body, "cmpl-", prompts, params)
        answer = CompletionAnswer(call, body, params.n)
        if body.stream:
            return await call.stream(answer.events())
        return await json_answer(await call.finished(), answer.body, call.headers)


async def _engine_prompts(service: Service, body: CompletionRequest, max_tokens: int | None) -> list[dict[str, Any]]:
    return [await engine_prompt(service, prompt, body, max_tokens) for prompt in as_prompts(body.prompt)]
