"""What may be wished of the prefix cache at any time: pins, some of which are refused, and to forget everything."""

from __future__ import annotations

from typing import Any

from core.toy_model import VOCAB_SIZE
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from fastpaged._core import Scheduler

ROOTS = st.sampled_from(["", "", "salt"])


def text(which: int, length: int) -> list[int]:
    """The beginning of one of several texts."""
    return [(7 * which + 3 * i) % VOCAB_SIZE for i in range(length)]


class PrefixRules(RuleBasedStateMachine):
    """Rules for a machine that has a scheduler. pinned: the ids of its pins."""

    config: dict[str, Any]
    scheduler: Scheduler
    pinned: set[int]

    @rule(which=st.integers(0, 2), length=st.integers(0, 12), root=ROOTS)
    def pin(self, which: int, length: int, root: str) -> None:
        """Some of what is never computed, some that do not fit."""
        pin_id = len(self.pinned) + 1
        while pin_id in self.pinned:
            pin_id += 1
        num_blocks = length // self.config["block_size"]
        taken = sum(pin.num_blocks for pin in self.scheduler.pins())
        try:
            num_held = self.scheduler.pin(pin_id, text(which, length), root)
        except ValueError:
            assert num_blocks == 0 or taken + num_blocks > self.config["max_pinned_blocks"]
            return
        assert 0 <= num_held <= num_blocks <= self.config["max_pinned_blocks"] - taken
        self.pinned.add(pin_id)

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        pin_id = data.draw(st.sampled_from(sorted(self.pinned)), label="pin_id")
        assert self.scheduler.unpin(pin_id)
        assert not self.scheduler.unpin(pin_id)
        self.pinned.discard(pin_id)

    @rule(really=st.sampled_from([False] * 4 + [True]))
    def reset_prefix_cache(self, really: bool) -> None:
        if really:
            self.scheduler.reset_prefix_cache()
            assert not self.scheduler.cached_free_blocks().size
            assert all(pin.num_held_blocks == 0 for pin in self.scheduler.pins())

    def num_pinned(self) -> int:
        """Blocks, those that two pins hold counted twice."""
        return sum(pin.num_held_blocks for pin in self.scheduler.pins())
