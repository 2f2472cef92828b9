"""A table of logprobs for people: one line per generated token, its alternatives beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastpaged.outputs import CompletionOutput, Logprob

_TOKEN_WIDTH = 18


def logprob_table(completion: CompletionOutput) -> str:
    """token, its logprob and rank, then the other tokens asked for, best first. Tokens are quoted, so that spaces
    and newlines can be told apart."""
    lines = [f"{'token':<{_TOKEN_WIDTH}} {'logprob':>9} {'rank':>6}  alternatives"]
    for token_id, entry in zip(completion.token_ids, completion.logprobs or [], strict=True):
        chosen = entry[token_id]
        others = "  ".join(_short(other) for other_id, other in entry.items() if other_id != token_id)
        lines.append(
            f"{chosen.decoded_token!r:<{_TOKEN_WIDTH}} {chosen.logprob:>9.4f} {chosen.rank:>6}  {others}".rstrip()
        )
    lines.append(f"cumulative logprob {completion.cumulative_logprob:.4f}, {completion.finish_reason}")
    return "\n".join(lines)


def _short(logprob: Logprob) -> str:
    return f"{logprob.decoded_token!r} {logprob.logprob:.4f}"
