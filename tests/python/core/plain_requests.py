"""What requests should answer and hold, kept plainly: every branch's tokens in a list, and who computed them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from core.toy_model import next_token

NEVER = 2**63 - 1  # a point in time, in nanoseconds


@dataclass
class PlainBranch:
    """One branch: its context is what was known before it was forked, and what it sampled since."""

    sequence_id: int
    context: list[int]  # prompt, then output
    parent: PlainBranch | None = None
    num_inherited: int = 0  # tokens that were computed before the fork, by the parent or its own ancestors
    most_computed: int = 0  # tokens ever computed or inherited: those below are recomputed if planned again
    voice: int | None = None  # who speaks: the sequence itself, unless it is one of a request's samples

    def fork(self, sequence_id: int) -> PlainBranch:
        """A branch forked off when all but the last known token are computed."""
        computed = len(self.context) - 1
        return PlainBranch(sequence_id, self.context[:], self, computed, computed)

    def part(self, sequence_id: int, voice: int) -> PlainBranch:
        """Another sample of the same prompt, which is computed, and no token answered yet."""
        computed = len(self.context)
        return PlainBranch(sequence_id, self.context[:], self, computed, computed, voice)

    def writer(self, position: int) -> int:
        """Which sequence wrote this position of the context, itself or an ancestor."""
        branch = self
        while branch.parent is not None and position < branch.num_inherited:
            branch = branch.parent
        return branch.sequence_id

    def next(self) -> int:
        return next_token(self.context, self.sequence_id if self.voice is None else self.voice)

    def compute(self, first_token: int, num_tokens: int) -> int:
        """These tokens are computed. Returns how many of them for another time."""
        end = first_token + num_tokens
        again = max(0, min(end, self.most_computed) - first_token)
        self.most_computed = max(self.most_computed, end)
        return again


@dataclass
class PlainRequest:
    """A request and its unfinished branches, by sequence id, in the order they were made."""

    prompt: list[int]
    max_tokens: int
    stop_token_ids: Collection[int]
    num_samples: int = 1  # that are still to part, drawn from the prompt's last row
    seed: int = 0
    deadline: int = NEVER
    queue_deadline: int = NEVER  # while it was never let in
    branches: dict[int, PlainBranch] = field(default_factory=dict)

    def voice(self, sample: int) -> int:
        """Of one of several samples; neighbours speak alike, and so do requests of one seed."""
        return 1_000_000 + 1000 * self.seed + sample // 2

    @property
    def num_counted(self) -> int:
        """Branches, those to come included."""
        return max(len(self.branches), self.num_samples)

    def finish_reason(self, branch: PlainBranch, max_model_len: int) -> str | None:
        """Why a branch ends after its last token, if it does."""
        if branch.context[-1] in self.stop_token_ids:
            return "STOP"
        num_output = len(branch.context) - len(self.prompt)
        return "LENGTH" if num_output == self.max_tokens or len(branch.context) == max_model_len else None

    def finish_reason_by_time(self, now: int) -> str | None:
        """Why a step of that time ends it, if it does: the earlier of its times, and of equal ones the deadline."""
        if min(self.deadline, self.queue_deadline) > now:
            return None
        return "DEADLINE" if self.deadline <= self.queue_deadline else "QUEUE_TIMEOUT"

    def num_steps_allowed(self) -> int:
        """This request's share of the bound that the scheduler states."""
        return len(self.prompt) + (2 * self.max_tokens + 1) * self.num_counted


def num_blocks_needed(branches: Sequence[PlainBranch], num_tokens: int, block_size: int) -> int:
    """Blocks for the first num_tokens tokens of each branch, those that were written before a fork counted once."""
    return len(
        {
            (first, branch.writer(min(first + block_size, num_tokens) - 1))
            for branch in branches
            for first in range(0, num_tokens, block_size)
        }
    )
