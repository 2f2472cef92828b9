"""Several outputs of one request as one: for a reader who comes less often than the engine steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from fastpaged.engine.lazy_logprobs import LazyLogprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastpaged.outputs import CompletionOutput, RequestOutput


def merge_deltas(outputs: Sequence[RequestOutput]) -> RequestOutput:
    """What a reader of every output would have added up, as one delta. outputs: one request's, with output_kind DELTA,
    in order, at least one."""
    last = outputs[-1]
    if len(outputs) == 1:
        return last
    by_index: dict[int, list[CompletionOutput]] = {}
    for output in outputs:
        for completion in output.outputs:
            by_index.setdefault(completion.index, []).append(completion)
    shown = (output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None)
    return replace(
        last,
        prompt_logprobs=next(shown, None),  # one of the deltas has them, or none
        outputs=[_joined(by_index[index]) for index in sorted(by_index)],
    )


def _joined(deltas: list[CompletionOutput]) -> CompletionOutput:
    """All but text, token_ids and logprobs is of the whole answer in every delta: the last one's."""
    last = deltas[-1]
    logprobs = [cast("LazyLogprobs", delta.logprobs) for delta in deltas if delta.logprobs is not None]
    return replace(
        last,
        text="".join(delta.text for delta in deltas),
        token_ids=[token_id for delta in deltas for token_id in delta.token_ids],
        logprobs=LazyLogprobs.joined(logprobs) if logprobs else None,
    )
