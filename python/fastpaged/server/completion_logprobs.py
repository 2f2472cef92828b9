"""Logprobs as /v1/completions has them: parallel lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fastpaged.outputs import Logprob


class CompletionLogprobs:
    """Of one choice. as_ids: a token is called "token_id:N" rather than by its text."""

    def __init__(self, num_top: int, *, as_ids: bool) -> None:
        self._num_top = num_top
        self._as_ids = as_ids
        self._offset = 0  # in the choice's text, of the next token

    def body(
        self,
        entries: Iterable[dict[int, Logprob] | None],
        token_ids: Iterable[int],
        token_text: Callable[[int], str],
    ) -> dict[str, Any]:
        """Of the tokens that follow those told before. An entry of None, of a prompt's first token, is null."""
        offsets: list[int] = []
        names: list[str] = []
        logprobs: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        for token_id, entry in zip(token_ids, entries, strict=True):
            text = token_text(token_id) if entry is None else entry[token_id].decoded_token
            name = self._name(token_id, text)
            offsets.append(self._offset)
            names.append(name)
            logprobs.append(None if entry is None else entry[token_id].logprob)
            tops.append(None if entry is None else self._top(entry))
            self._offset += len(name)
        return {"text_offset": offsets, "token_logprobs": logprobs, "tokens": names, "top_logprobs": tops}

    def _top(self, entry: dict[int, Logprob]) -> dict[str, float]:
        best = sorted(entry.items(), key=lambda item: item[1].rank)
        # The token itself is there always, beside the best.
        sampled = next(iter(entry))
        return {
            self._name(token_id, found.decoded_token): found.logprob
            for place, (token_id, found) in enumerate(best)
            if place < self._num_top or token_id == sampled
        }

    def _name(self, token_id: int, text: str | None) -> str:
        return f"token_id:{token_id}" if self._as_ids or text is None else text
