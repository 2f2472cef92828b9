"""A conversation becomes a prompt."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fastpaged.engine.admission import check_unicode
from fastpaged.errors import InvalidRequestError
from fastpaged.tokenizer.tokenizer import LONG_TEXT

if TYPE_CHECKING:
    from fastpaged.server.chat_request import Conversation
    from fastpaged.server.service import Service


async def conversation_prompt(
    service: Service, conversation: Conversation, *, add_special_tokens: bool = False
) -> dict[str, Any]:
    """{"prompt", "prompt_token_ids"} by the model's chat template, or the server's. InvalidRequestError for messages
    that the template, or whoever checks them, does not take."""
    arguments = conversation.template_arguments
    if len(repr(conversation.messages)) > LONG_TEXT:
        return await asyncio.to_thread(_render, service, conversation.messages, arguments, add_special_tokens)
    return _render(service, conversation.messages, arguments, add_special_tokens)


def _render(
    service: Service, messages: list[dict[str, Any]], arguments: dict[str, Any], add_special_tokens: bool
) -> dict[str, Any]:
    tokenizer = service.engine.get_tokenizer()
    messages = [_with_content(message) for message in messages]
    text = tokenizer.apply_chat_template(messages, chat_template=service.settings.chat_template, **arguments)
    if not text:
        raise InvalidRequestError("messages: the chat template makes an empty prompt of them")
    check_unicode("messages", text)
    return {"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special_tokens=add_special_tokens)}


def _with_content(message: dict[str, Any]) -> dict[str, Any]:
    """What called tools has often said nothing: that is null for who sends it, and no text for most templates."""
    return {**message, "content": ""} if message.get("tool_calls") and message.get("content") is None else message
