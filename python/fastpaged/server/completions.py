"""POST /v1/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

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
    service.check_open()
    service.check_model(body.model)
    body.check_served()
    service.note_unknown(body.unknown)
    params = body.params(service.engine.get_default_sampling_params())
    prompts = [await engine_prompt(service, prompt, body, params.max_tokens) for prompt in as_prompts(body.prompt)]
    call = Call(request, body, "cmpl-", prompts, params)
    answer = CompletionAnswer(call, body, params.n)
    if body.stream:
        return await call.stream(answer.events())
    return await json_answer(await call.finished(), answer.body, call.headers)
