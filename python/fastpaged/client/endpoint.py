"""Endpoint: one of the two routes that generate, as a benchmark asks it and reads what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastpaged.client.bench_request import BenchRequest


@dataclass(frozen=True)
class Endpoint:
    """kind: what other benchmarks call it."""

    route: str
    kind: str
    is_chat: bool

    def body(self, request: BenchRequest) -> dict[str, Any]:
        """What a request says of itself. InvalidRequestError if this route cannot say it."""
        limit = {"max_tokens": request.num_output_tokens}
        if not self.is_chat:
            return {"prompt": request.prompt, **limit}
        if not isinstance(request.prompt, str):
            raise InvalidRequestError("--endpoint must be completions for prompts of token ids, got chat")
        return {"messages": [{"role": "user", "content": request.prompt}], **limit}

    def has_tokens(self, choice: Mapping[str, Any]) -> bool:
        """Whether an event brings some. One without text does if it is neither the end nor, in a chat, the beginning:
        bytes of half a character, say."""
        if self.is_chat:
            delta = choice.get("delta") or {}
            return bool(text_of(choice)) or ("content" in delta and "role" not in delta and not _ends(choice))
        return bool(choice.get("text")) or not _ends(choice)


def text_of(choice: Mapping[str, Any]) -> str:
    """What an event adds to the answer, or to the thoughts before it."""
    if text := choice.get("text"):
        return str(text)
    delta = choice.get("delta") or {}
    return delta.get("content") or delta.get("reasoning") or delta.get("reasoning_content") or ""


def _ends(choice: Mapping[str, Any]) -> bool:
    return choice.get("finish_reason") is not None


ENDPOINTS = {
    "completions": Endpoint("/v1/completions", "openai", is_chat=False),
    "chat": Endpoint("/v1/chat/completions", "openai-chat", is_chat=True),
}
