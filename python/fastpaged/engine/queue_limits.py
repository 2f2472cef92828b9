"""QueueLimits: how many requests may wait to be let in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpaged.errors import QueueOverflowError

if TYPE_CHECKING:
    from fastpaged.config import EngineConfig


@dataclass(frozen=True)
class QueueLimits:
    """None: there is no limit. Who was let in once does not wait any more, preempted or not.

    An empty queue takes any prompt: so what is refused is taken later, if it is tried again.
    """

    max_requests: int | None
    max_tokens: int | None  # of the prompts of those that wait

    @classmethod
    def of(cls, config: EngineConfig) -> QueueLimits:
        """Those that were given."""
        return cls(config.max_num_queued_requests, config.max_num_queued_tokens)

    def overflow(self, num_waiting: int, num_waiting_tokens: int, num_tokens: int) -> QueueOverflowError | None:
        """Why a request with a prompt of num_tokens may not come to those that wait; None: it may."""
        if self.max_requests is not None and num_waiting >= self.max_requests:
            return QueueOverflowError(
                f"the queue is full: max_num_queued_requests = {self.max_requests}, and {num_waiting} requests wait. "
                f"Try again later"
            )
        if self.max_tokens is not None and num_waiting > 0 and num_waiting_tokens + num_tokens > self.max_tokens:
            return QueueOverflowError(
                f"the queue is full: max_num_queued_tokens = {self.max_tokens}, {num_waiting} requests wait with "
                f"prompts of {num_waiting_tokens} tokens, and this one needs {num_tokens}. Try again later"
            )
        return None
