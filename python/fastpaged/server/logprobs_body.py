"""Logprobs as JSON, where OpenAI's API has no shape of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastpaged.outputs import Logprob, RequestOutput


def prompt_logprobs_body(output: RequestOutput) -> list[dict[str, Any] | None] | None:
    """Per token of the prompt {token id: {"logprob", "rank", "decoded_token"}}; null for the first. None: not there."""
    if output.prompt_logprobs is None:
        return None
    return [None if entry is None else _entry(entry) for entry in output.prompt_logprobs]


def _entry(entry: dict[int, Logprob]) -> dict[str, Any]:
    return {
        str(token_id): {"logprob": found.logprob, "rank": found.rank, "decoded_token": found.decoded_token}
        for token_id, found in entry.items()
    }
