"""POST /tokenize and /detokenize."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from fastpaged.server.chat_request import Conversation
from fastpaged.server.conversation import conversation_prompt
from fastpaged.server.errors import ApiError
from fastpaged.server.prompts import encoded
from fastpaged.server.service import Service

router = APIRouter(tags=["tokenizer"])

_MANY = 1024  # token ids that are decoded on another thread


class TokenizeRequest(Conversation):
    """Either a prompt, a text, or messages, of which the chat template makes one. add_special_tokens: with the model's
    frame, often a BOS; null is so for a text, and not for messages, which have special tokens of their own."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["prompt"]}, {"required": ["messages"]}]})

    model: str | None = None
    prompt: str | None = Field(None, examples=["Once upon a time"])
    messages: list[dict[str, Any]] = Field([], examples=[[{"role": "user", "content": "Hello"}]])
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(BaseModel):
    """Token ids."""

    model_config = ConfigDict(extra="allow", strict=True)
    model: str | None = None
    tokens: list[int] = Field(examples=[[1, 2, 3]])


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, request: Request) -> JSONResponse:
    """{"count", "max_model_len", "tokens", "token_strs"}."""
    service = Service.of(request)
    service.check_model(body.model)
    if (body.prompt is not None) == ("messages" in body.model_fields_set):
        raise ApiError(400, "prompt or messages must be given, and not both", param="prompt")
    if body.prompt is not None:
        tokens = await encoded(service, body.prompt, add_special=body.add_special_tokens is not False)
    else:
        prompt = await conversation_prompt(service, body, add_special_tokens=bool(body.add_special_tokens))
        tokens = prompt["prompt_token_ids"]
    if len(tokens) > _MANY:  # of which each is looked at
        return await asyncio.to_thread(_answer, service, tokens, body.return_token_strs)
    return _answer(service, tokens, body.return_token_strs)


def _answer(service: Service, tokens: list[int], with_strs: bool | None) -> JSONResponse:
    tokenizer = service.engine.get_tokenizer()
    return JSONResponse(
        {
            "count": len(tokens),
            "max_model_len": service.engine.max_model_len,
            "tokens": tokens,
            "token_strs": [tokenizer.token_text(token_id) for token_id in tokens] if with_strs else None,
        }
    )


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, request: Request) -> dict[str, str]:
    """{"prompt": the text}, special tokens included."""
    service = Service.of(request)
    service.check_model(body.model)
    tokenizer = service.engine.get_tokenizer()
    vocab_size = service.engine.vocab_size
    if body.tokens and not (min(body.tokens) >= 0 and max(body.tokens) < vocab_size):
        place, found = next((place, one) for place, one in enumerate(body.tokens) if not 0 <= one < vocab_size)
        raise ApiError(400, f"tokens[{place}] must be a token id in [0, {vocab_size}), got {found}", param="tokens")
    if len(body.tokens) > _MANY:
        text = await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special_tokens=False)
    else:
        text = tokenizer.decode(body.tokens, skip_special_tokens=False)
    return {"prompt": text}
