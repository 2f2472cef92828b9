"""Logprobs as /v1/chat/completions has them: an object a token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastpaged.server.logprobs_body import finite, token_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastpaged.outputs import Logprob
    from fastpaged.tokenizer import Tokenizer


class ChatLogprobs:
    """Of one call. num_top: alternatives. as_ids: a token is called "token_id:N" rather than by its text."""

    def __init__(self, tokenizer: Tokenizer, num_top: int, *, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._as_ids = as_ids

    def body(self, entries: Iterable[dict[int, Logprob]], token_ids: Iterable[int]) -> dict[str, Any]:
        """Of some tokens in a row."""
        content = []
        for token_id, entry in zip(token_ids, entries, strict=True):
            best = sorted(entry.items(), key=lambda item: item[1].rank)[: self._num_top]
            content.append(
                {
                    **self._token(token_id, entry[token_id]),
                    "top_logprobs": [self._token(other, found) for other, found in best],
                }
            )
        return {"content": content, "refusal": None}

    def _token(self, token_id: int, found: Logprob) -> dict[str, Any]:
        return {
            "token": token_name(token_id, found.decoded_token, as_id=self._as_ids),
            "logprob": finite(found.logprob),
            "bytes": list(self._tokenizer.token_bytes(token_id)),
        }
