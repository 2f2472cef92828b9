"""What preemption costs, counted from the plans alone, beside what the engine says."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fastpaged import _core
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.executor.in_process import InProcessExecutor


@dataclass(frozen=True)
class PreemptionCost:
    """Of all requests together, since the engine was made."""

    num_preemptions: int
    bytes_swapped_out: int
    bytes_swapped_in: int
    tokens_recomputed: int

    @classmethod
    def reported_by(cls, engine: LLMEngine) -> PreemptionCost:
        """What the scheduler says."""
        stats = engine.scheduler.stats
        block_bytes = engine.worker.kv_memory.array[0].nbytes
        return cls(
            stats.num_preemptions,
            stats.num_blocks_swapped_out * block_bytes,
            stats.num_blocks_swapped_in * block_bytes,
            stats.num_tokens_recomputed,
        )

    def __str__(self) -> str:
        return (
            f"{self.num_preemptions} preemptions, {self.bytes_swapped_out} bytes swapped out, "
            f"{self.bytes_swapped_in} in, {self.tokens_recomputed} tokens recomputed"
        )


def check_bytes_between_tiers(engine: LLMEngine, name: str) -> None:
    """AssertionError unless what the memory copied is what requests swapped and what the prefix cache moved."""
    stats = engine.scheduler.stats
    said = {
        "swap_out": stats.num_blocks_swapped_out + stats.num_prefix_blocks_demoted,
        "swap_in": stats.num_blocks_swapped_in + stats.num_prefix_blocks_promoted,
        "copy_on_write": stats.num_blocks_copied_on_write,
    }
    block_bytes = engine.worker.kv_memory.array[0].nbytes
    copied = {kind: num_bytes / block_bytes for kind, num_bytes in engine.worker.kv_memory.num_bytes_copied.items()}
    if copied != said:
        raise AssertionError(f"{name}: the memory copied {copied} blocks, the scheduler said {said}")


class CountingExecutor(InProcessExecutor):
    """Takes the place of an engine's executor, and keeps account of what each request has computed and lost.

    For requests of one sequence, whose plans are all carried out, and none of them aborted. What a request finds in the
    prefix cache counts as computed, and is neither recomputed nor swapped in.
    """

    def __init__(self, engine: LLMEngine) -> None:
        super().__init__(engine.worker, _core.BatchBuilder(engine.scheduler))
        engine._executor = self
        self._engine = engine
        self._block_bytes = engine.worker.kv_memory.array[0].nbytes
        self._computed: Counter[int] = Counter()  # tokens in the cache, on either tier, by group
        self._most_computed: Counter[int] = Counter()  # ever
        self._num_preemptions = 0
        self._blocks: Counter[str] = Counter()  # from what groups have computed
        self._blocks_copied: Counter[str] = Counter()  # from the copies
        self._tokens_recomputed = 0

    def run(self, plan: _core.SchedulerOutput) -> _core.SamplerOutput:
        """Counts the plan, then runs it."""
        self._computed.update(dict(plan.cached))
        self._count_moves(plan)
        self._count_found_again(plan)
        for group_id, first, num_tokens in plan.scheduled:
            if first != self._computed[group_id]:
                raise AssertionError(f"group {group_id} goes on at {first}, having computed {self._computed[group_id]}")
            end = self._computed[group_id] = first + num_tokens
            self._tokens_recomputed += max(0, min(end, self._most_computed[group_id]) - first)
            self._most_computed[group_id] = max(self._most_computed[group_id], end)
        return super().run(plan)

    def _count_found_again(self, plan: _core.SchedulerOutput) -> None:
        """What a request that is recomputed finds of its own, which no plan tells."""
        if self._engine.config.enable_prefix_caching:
            for group_id, first, _ in plan.scheduled:
                if self._computed[group_id] == 0 and first <= self._most_computed[group_id]:
                    self._computed[group_id] = first

    def _count_moves(self, plan: _core.SchedulerOutput) -> None:
        block_size = self._engine.config.block_size
        for kind, group_ids in (("swap_out", plan.swapped_out), ("swap_in", plan.swapped_in)):
            self._blocks[kind] += sum(-(-self._computed[group_id] // block_size) for group_id in group_ids)
        for kind, _, _, num_blocks in plan.copies:
            self._blocks_copied[kind] += num_blocks
        self._num_preemptions += len(plan.preempted)
        for group_id in (Counter(plan.preempted) - Counter(plan.swapped_out)).elements():
            self._computed[group_id] = 0

    @property
    def cost(self) -> PreemptionCost:
        """As counted here."""
        return self._cost_of(self._num_preemptions, self._blocks, self._tokens_recomputed)

    def check_what_was_reported(self, name: str) -> None:
        """AssertionError unless the scheduler, the copies and the memory say the same, to the byte."""
        stats = self._engine.scheduler.stats
        moved = self._engine.worker.kv_memory.num_bytes_copied
        reports = {
            "the scheduler": PreemptionCost.reported_by(self._engine),
            "the copies": self._cost_of(self._num_preemptions, self._blocks_copied, self._tokens_recomputed),
            "the memory": PreemptionCost(
                self._num_preemptions, moved["swap_out"], moved["swap_in"], self._tokens_recomputed
            ),
        }
        for who, reported in reports.items():
            if reported != self.cost:
                raise AssertionError(f"{name}: {who} said {reported}; counted were {self.cost}")
        if self._blocks_copied["copy_on_write"] != stats.num_partial_prefix_blocks:
            raise AssertionError(f"{name}: blocks were copied on write, though nobody writes into shared ones")

    def _cost_of(self, num_preemptions: int, blocks: Counter[str], tokens_recomputed: int) -> PreemptionCost:
        return PreemptionCost(
            num_preemptions,
            blocks["swap_out"] * self._block_bytes,
            blocks["swap_in"] * self._block_bytes,
            tokens_recomputed,
        )
