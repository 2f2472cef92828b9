"""What a body gives for a prompt becomes what the engine takes."""

from __future__ import annotations

import asyncio
import reprlib
from typing import TYPE_CHECKING, Any

from fastpaged.engine.admission import check_unicode
from fastpaged.server.errors import ApiError
from fastpaged.tokenizer.tokenizer import LONG_TEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastpaged.server.generation_fields import GenerationFields
    from fastpaged.server.service import Service

MAX_PROMPTS = 1024  # of one call

GivenPrompt = str | list[str] | list[int] | list[list[int]]


def as_prompts(given: GivenPrompt) -> list[str | list[int]]:
    """One or several. ApiError for none, and for too many."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise ApiError(400, "prompt must not be empty", param="prompt")
    if isinstance(given[0], int):
        return [given]
    if len(given) > MAX_PROMPTS:
        raise ApiError(400, f"prompt must be at most {MAX_PROMPTS} prompts, got {len(given)}", param="prompt")
    return list(given)


async def engine_prompt(
    service: Service, prompt: str | list[int], body: GenerationFields, max_tokens: int | None
) -> dict[str, Any]:
    """As AsyncLLMEngine.generate() takes it, with the body's cache_salt, cut by its truncate_prompt_tokens."""
    made: dict[str, Any] = {}
    if isinstance(prompt, str):
        made["prompt"] = prompt
        if body.add_special_tokens is False or body.truncate_prompt_tokens is not None:
            made["prompt_token_ids"] = await encoded(service, prompt, add_special=body.add_special_tokens is not False)
    else:
        made["prompt_token_ids"] = prompt
    return cut_prompt(service, made, body, max_tokens)


def cut_prompt(
    service: Service, prompt: dict[str, Any], body: GenerationFields, max_tokens: int | None = None
) -> dict[str, Any]:
    """By the body's truncate_prompt_tokens, with its cache_salt. What is cut has no text any more. max_tokens: of the
    answer, for which -1 leaves room."""
    if body.cache_salt is not None:
        prompt["cache_salt"] = body.cache_salt
    if body.truncate_prompt_tokens is not None:
        ids = _cut(service, prompt["prompt_token_ids"], body, max_tokens or 1)
        if len(ids) < len(prompt["prompt_token_ids"]):
            prompt.pop("prompt", None)
        prompt["prompt_token_ids"] = ids
    return prompt


async def encoded(service: Service, text: str, *, add_special: bool) -> list[int]:
    """Token ids of a prompt; a long text does not hold up the event loop."""
    check_unicode("prompt", text)
    tokenizer = service.engine.get_tokenizer()
    if len(text) > LONG_TEXT:
        return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=add_special)
    return tokenizer.encode(text, add_special_tokens=add_special)


def _cut(service: Service, ids: Sequence[int], body: GenerationFields, room: int) -> list[int]:
    most = body.truncate_prompt_tokens
    longest = service.engine.max_model_len - 1
    if most is None or most == -1:
        most = max(longest + 1 - room, 1)
    if not 1 <= most <= longest:
        raise ApiError(
            400, f"truncate_prompt_tokens must be -1 or an integer from 1 to {longest}, got {reprlib.repr(most)}",
            param="truncate_prompt_tokens",
        )  # fmt: skip
    return list(ids[:most] if body.truncation_side == "right" else ids[-most:])
