"""A table of logprobs for people: one line per generated token, its alternatives beside it, printed as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastpaged.outputs import CompletionOutput, Logprob

_TOKEN_WIDTH = 18

HEADER = f"{'token':<{_TOKEN_WIDTH}} {'logprob':>9} {'rank':>6}  alternatives"


def rows(completion: CompletionOutput, first: int) -> Iterator[str]:
    """Of the tokens from `first` on: token, its logprob and rank, then the other tokens asked for, best first.

    Tokens are quoted, so that spaces and newlines can be told apart.
    """
    entries = completion.logprobs or []
    for token_id, entry in zip(completion.token_ids[first:], entries[first:], strict=True):
        chosen = entry[token_id]
        others = "  ".join(_short(other) for other_id, other in entry.items() if other_id != token_id)
        yield f"{chosen.decoded_token!r:<{_TOKEN_WIDTH}} {chosen.logprob:>9.4f} {chosen.rank:>6}  {others}".rstrip()


def footer(completion: CompletionOutput) -> str:
    """What the answer adds up to, and why it ended."""
    return f"cumulative logprob {completion.cumulative_logprob:.4f}, {completion.finish_reason}"


def _short(logprob: Logprob) -> str:
    return f"{logprob.decoded_token!r} {logprob.logprob:.4f}"
