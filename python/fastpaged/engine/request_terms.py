"""RequestTerms: what a request asks of the queue."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastpaged import param_checks as check
from fastpaged.errors import InvalidRequestError

NEVER = 2**63 - 1  # as a point in time, in nanoseconds
_INT32 = 2**31


@dataclass(frozen=True)
class RequestTerms:
    """Whose turn it is, and how long that may take. Every bad value is an InvalidRequestError naming it.

    priority: smaller is served first; of use with scheduling_policy="priority" alone.
    deadline: seconds from arrival, after which it ends wherever it is, with what it has. None: never.
    queue_timeout: seconds from arrival, after which it ends if it was never let in. None: the engine's; inf: never.
    """

    priority: int = 0
    deadline: float | None = None
    queue_timeout: float | None = None

    def __post_init__(self) -> None:
        allowed = "an integer of 32 bits"
        object.__setattr__(self, "priority", check.integer("priority", self.priority, -_INT32, _INT32 - 1, allowed))
        for name in ("deadline", "queue_timeout"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _seconds(name, value))

    def check_priority(self, scheduling_policy: str) -> None:
        """That somebody will look at it."""
        if self.priority != 0 and scheduling_policy != "priority":
            raise InvalidRequestError(
                f"priority must be 0 without scheduling_policy='priority', got {self.priority} "
                f"with {scheduling_policy!r}"
            )


def point_in_time(arrival: int, seconds: float | None) -> int:
    """In nanoseconds, as `arrival`. None and infinity are NEVER, and so is what lies behind it."""
    if seconds is None or seconds >= (NEVER - arrival) / 1e9:
        return NEVER
    return arrival + math.ceil(seconds * 1e9)


def _seconds(name: str, value: object) -> float:
    allowed = "None or a number of seconds > 0"
    seconds = check.number(name, value, 0.0, math.inf, allowed)
    if seconds == 0.0:
        raise check.refusal(name, value, allowed)
    return seconds
