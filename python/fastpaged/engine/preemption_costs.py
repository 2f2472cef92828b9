"""What it costs to compute a preempted request's tokens again, and what to move its blocks: measured, not guessed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastpaged import _core

_STEPS_REMEMBERED = 64  # of each kind: older ones count for less and less
_BLOCKS_REMEMBERED = 256
_TOLD_ANEW = 0.1  # the scheduler hears of costs that have changed by so much


@dataclass(frozen=True)
class PreemptionCosts:
    """In seconds; 0 for what has not been measured yet. Which of two means is taken depends on them, no answer does."""

    seconds_per_token: float = 0.0  # computed as part of a prompt
    seconds_per_block_out: float = 0.0  # from the KV pool to host memory
    seconds_per_block_in: float = 0.0  # and back

    def __str__(self) -> str:
        return (
            f"recomputing 1 token {_duration(self.seconds_per_token)}, "
            f"a block out {_duration(self.seconds_per_block_out)}, in {_duration(self.seconds_per_block_in)}"
        )


class CostMeter:
    """Averages over what steps and copies really take, and tells the scheduler.

    A token's share of a step: the difference between steps with prompts and those without, by the tokens they differ
    in, as recomputing comes on top of what the step does anyway; where there is nothing to compare, all of the step.
    """

    def __init__(self, seconds_per_block: tuple[float, float], tell: Callable[[PreemptionCosts], None]) -> None:
        """seconds_per_block: out and in, as first measured, 0 if not at all. tell: is called between steps with costs
        that the scheduler should know."""
        self._out, self._in = (_Average(_BLOCKS_REMEMBERED, first) for first in seconds_per_block)
        self._prompts = _Average(_STEPS_REMEMBERED), _Average(_STEPS_REMEMBERED)  # tokens and seconds of a step
        self._decoding = _Average(_STEPS_REMEMBERED), _Average(_STEPS_REMEMBERED)
        self._tell = tell
        self._told = PreemptionCosts()
        self._fixed: PreemptionCosts | None = None

    @property
    def costs(self) -> PreemptionCosts:
        """As known by now."""
        if self._fixed is not None:
            return self._fixed
        return PreemptionCosts(self._seconds_per_token(), self._out.value, self._in.value)

    def fix(self, costs: PreemptionCosts | None) -> None:
        """These instead of what is measured. None: what is measured."""
        self._fixed = costs
        self._tell_if_changed()

    def note_step(self, num_tokens: int, num_samples: int, nanoseconds: int) -> None:
        """A step was computed, without its copies. num_samples: sequences that sample; what has more tokens computes
        prompts."""
        if nanoseconds <= 0 or num_tokens == 0:
            return
        has_prompts = num_tokens > num_samples
        tokens, seconds = self._prompts if has_prompts else self._decoding
        tokens.add(num_tokens)
        seconds.add(nanoseconds / 1e9)
        if has_prompts:  # other steps are many and quick, and say little of what a token costs
            self._tell_if_changed()

    def note_copies(self, plan: _core.SchedulerOutput, nanoseconds: int) -> None:
        """Those of a plan were made. Several kinds share the time in proportion to what was known of them."""
        if nanoseconds <= 0:
            return
        counts: Counter[str] = Counter()
        for kind, _, _, num_blocks in plan.copies:
            counts[kind] += num_blocks
        weights = {"swap_out": self._out.value or 1.0, "swap_in": self._in.value or 1.0}
        weights["copy_on_write"] = (weights["swap_out"] + weights["swap_in"]) / 2
        share = nanoseconds / 1e9 / sum(weights[kind] * count for kind, count in counts.items())
        for kind, average in (("swap_out", self._out), ("swap_in", self._in)):
            if counts[kind]:
                average.add(weights[kind] * share, counts[kind])
        self._tell_if_changed()

    def _seconds_per_token(self) -> float:
        tokens, seconds = (average.value for average in self._prompts)
        if tokens == 0.0:
            return 0.0
        more_tokens, more_seconds = tokens - self._decoding[0].value, seconds - self._decoding[1].value
        if 2 * more_tokens > tokens and more_seconds > 0:
            return more_seconds / more_tokens
        return seconds / tokens

    def _tell_if_changed(self) -> None:
        costs, told = self.costs, self._told
        pairs = (
            (costs.seconds_per_token, told.seconds_per_token),
            (costs.seconds_per_block_out, told.seconds_per_block_out),
            (costs.seconds_per_block_in, told.seconds_per_block_in),
        )
        if any(abs(now - before) > _TOLD_ANEW * before for now, before in pairs):
            self._told = costs
            self._tell(costs)


class _Average:
    """Of samples with weights, of which the last `remembered` count most."""

    def __init__(self, remembered: float, first: float = 0.0) -> None:
        self.value = first
        self._remembered = remembered
        self._weight = 1.0 if first > 0.0 else 0.0

    def add(self, sample: float, weight: float = 1.0) -> None:
        self._weight = min(self._weight + weight, self._remembered)
        self.value += (sample - self.value) * min(1.0, weight / self._weight)


def _duration(seconds: float) -> str:
    if seconds >= 1.0:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
