"""LazyLogprobs: logprobs as the arrays they came in, which look like a list of dicts.

An entry is 8 bytes here and some 300 as objects. Making these for a whole vocabulary would hold up the step, and with
it everybody else's answer; so they are made when they are read, by whoever reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from fastpaged.outputs import Logprob

TokenText = Callable[[int], "str | None"]
Scores = tuple[
    npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32],
    npt.NDArray[np.float32],
]  # fmt: skip
Entry = dict[int, Logprob]

BYTES_PER_ENTRY = 8  # an id and a logprob; the rank of an alternative is its place


class TokenLogprobs(NamedTuple):
    """One token's, and those of its alternatives [k], best first."""

    token_id: int
    logprob: float
    rank: int
    top_ids: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]


def token_logprobs(token_ids: Sequence[int], scores: Scores) -> list[TokenLogprobs]:
    """scores: SamplerOutput.scores() of rows that belong to these tokens. The arrays are shared."""
    logprobs, ranks, offsets, top_ids, top_logprobs = scores
    bounds = offsets.tolist()
    return [
        TokenLogprobs(token_id, logprob, rank, top_ids[begin:end], top_logprobs[begin:end])
        for token_id, logprob, rank, begin, end in zip(
            token_ids, logprobs.tolist(), ranks.tolist(), bounds[:-1], bounds[1:], strict=True
        )
    ]


class LazyLogprobs(Sequence[Any]):
    """Immutable, and equal to the list of its entries: {token id: Logprob}, the token itself first, then the
    alternatives, best first; None for a token that has none. Each reading makes them anew."""

    __slots__ = ("_rows", "_token_text")
    __hash__ = None  # type: ignore[assignment]  # as a list

    def __init__(self, rows: Iterable[TokenLogprobs | None], token_text: TokenText) -> None:
        """token_text: what becomes decoded_token; whatever it raises comes to who reads the entry."""
        self._rows = tuple(rows)
        self._token_text = token_text

    @classmethod
    def joined(cls, parts: Sequence[LazyLogprobs]) -> LazyLogprobs:
        """One behind the other. parts: at least one, all of one request."""
        return cls((row for part in parts for row in part._rows), parts[0]._token_text)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Entry | None: ...
    @overload
    def __getitem__(self, index: slice) -> LazyLogprobs: ...
    def __getitem__(self, index: int | slice) -> Entry | LazyLogprobs | None:
        if isinstance(index, slice):
            return LazyLogprobs(self._rows[index], self._token_text)
        row = self._rows[index]
        return None if row is None else _entry(row, self._token_text)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, (list, LazyLogprobs)):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return repr(list(self))

    def __copy__(self) -> LazyLogprobs:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyLogprobs:
        """dataclasses.asdict() copies so, too: it leaves this as it is."""
        return self

    def __reduce__(self) -> tuple[type[LazyLogprobs], tuple[tuple[TokenLogprobs | None, ...], TokenText]]:
        """With the texts that it shows instead of the tokenizer that makes them."""
        rows = [row for row in self._rows if row is not None]
        ids = {row.token_id for row in rows}.union(*(row.top_ids.tolist() for row in rows))
        texts = {token_id: self._token_text(token_id) for token_id in ids}
        return LazyLogprobs, (self._rows, texts.__getitem__)


def no_text(token_id: int) -> None:
    """The TokenText of a request without detokenize."""


def _entry(row: TokenLogprobs, token_text: TokenText) -> Entry:
    entry = {row.token_id: Logprob(row.logprob, row.rank, token_text(row.token_id))}
    alternatives = zip(row.top_ids.tolist(), row.top_logprobs.tolist(), strict=True)
    for rank, (token_id, logprob) in enumerate(alternatives, 1):
        if token_id != row.token_id:
            entry[token_id] = Logprob(logprob, rank, token_text(token_id))
    return entry
