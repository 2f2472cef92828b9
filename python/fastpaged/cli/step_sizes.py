"""StepSizes: which steps `fastpaged bench kernels` makes, and what an engine must have room for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepSizes:
    """context: tokens of each sequence in a decode step, but for those that it gets in the steps, and while the prompts
    of the others are read."""

    batches: tuple[int, ...]
    context: int
    prefill: int
    num_steps: int

    @property
    def max_tokens(self) -> int:
        """Most tokens that a sequence gets. As the engine's budget of tokens is at least twice a batch, prompts are
        read in twice as many steps as there would be tokens for at the most."""
        num_prompt_steps = 2 * max(self.batches) * self.context // self.least_budget + 2
        return num_prompt_steps + self.num_steps + 2

    @property
    def least_budget(self) -> int:
        """Tokens in a step."""
        return max(self.prefill, 2 * max(self.batches), 2048)

    @property
    def num_tokens(self) -> int:
        """Most tokens of a sequence."""
        return max(self.context + self.max_tokens, self.prefill + 1)

    def num_blocks(self, block_size: int) -> int:
        """Of the KV pool: for the largest step, and one to spare for the watermark of every hundred."""
        decode = max(self.batches) * -(-(self.context + self.max_tokens) // block_size)
        return max(decode, -(-(self.prefill + 1) // block_size)) * 102 // 100 + 2
