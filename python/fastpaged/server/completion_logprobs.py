"""Logprobs as /v1/completions has them: parallel lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastpaged.server.logprobs_body import finite, shown, token_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fastpaged.outputs import Logprob


class CompletionLogprobs:
    """Of one choice. as_ids: a token is called "token_id:N" rather than by its text."""

    def __init__(self, num_top: int, *, as_ids: bool, token_text: Callable[[int], str | None]) -> None:
        """token_text: of a token that has no logprob, the first of a prompt."""
        self._num_top = num_top
        self._as_ids = as_ids
        self._token_text = token_text
        self._offset = 0  # of the next token: the characters of all those before it

    def body(self, token_ids: Iterable[int], entries: Iterable[dict[int, Logprob] | None]) -> dict[str, list[Any]]:
        """Of the tokens that follow those told before. An entry of None, of a prompt's first token, is null."""
        offsets: list[int] = []
        names: list[str] = []
        logprobs: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        for token_id, entry in zip(token_ids, entries, strict=True):
            text = self._token_text(token_id) if entry is None else entry[token_id].decoded_token
            offsets.append(self._offset)
            names.append(token_name(token_id, text, as_id=self._as_ids))
            logprobs.append(None if entry is None else finite(entry[token_id].logprob))
            tops.append(None if entry is None else self._top(token_id, entry))
            self._offset += len(text or "")
        return {"text_offset": offsets, "token_logprobs": logprobs, "tokens": names, "top_logprobs": tops}

    def _top(self, token_id: int, entry: dict[int, Logprob]) -> dict[str, float]:
        """By name. Of those with the same one, as parts of characters have it, the token itself, or else the best."""
        top: dict[str, float] = {}
        for one, found in shown(entry, token_id, self._num_top):
            top.setdefault(token_name(one, found.decoded_token, as_id=self._as_ids), finite(found.logprob))
        return top
