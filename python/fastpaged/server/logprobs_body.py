"""Logprobs as JSON, where OpenAI's API has no shape of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastpaged.outputs import Logprob, RequestOutput

_LOWEST = -9999.0  # JSON has no infinity


def finite(logprob: float) -> float:
    """What stands for it in JSON."""
    return max(logprob, _LOWEST)


def token_name(token_id: int, text: str | None, *, as_id: bool) -> str:
    """What a token is called: its text; as_id, and where there are no texts, "token_id:N"."""
    return f"token_id:{token_id}" if as_id or text is None else text


def shown(entry: dict[int, Logprob], token_id: int, num_top: int) -> Iterable[tuple[int, Logprob]]:
    """Of an entry that may hold more: the token itself, then the best num_top of all (-1: all), without it."""
    return (item for item in entry.items() if num_top == -1 or item[0] == token_id or item[1].rank <= num_top)


def prompt_logprobs_body(output: RequestOutput, num_top: int = -1) -> list[dict[str, Any] | None] | None:
    """Per token of the prompt {token id: {"logprob", "rank", "decoded_token"}}; null for the first. None: not there."""
    if output.prompt_logprobs is None:
        return None
    return [
        None if entry is None else {str(one): _entry(found) for one, found in shown(entry, token_id, num_top)}
        for token_id, entry in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
    ]


def _entry(found: Logprob) -> dict[str, Any]:
    return {"logprob": finite(found.logprob), "rank": found.rank, "decoded_token": found.decoded_token}
