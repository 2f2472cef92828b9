"""What a conversation looks like to the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastpaged.tokenizer import Tokenizer
    from fastpaged.tokenizer.chat_messages import ChatMessage


def chat_prompt(tokenizer: Tokenizer, messages: Sequence[ChatMessage], **arguments: Any) -> dict[str, object]:
    """The prompt of a conversation, text and token ids. arguments: as for Tokenizer.apply_chat_template().

    The template writes its own special tokens: none are added when its text is encoded.
    """
    text = tokenizer.apply_chat_template(messages, **arguments)
    return {"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}
