"""Sample: what one request of a load was answered with, and when."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastpaged.client.endpoint import text_of
from fastpaged.client.server_error import ServerError, check_event

if TYPE_CHECKING:
    from fastpaged.client.endpoint import Endpoint


@dataclass
class Sample:
    """Times are seconds of one clock.

    sent, ended: when the request went out, and when the last event with a choice, or the failure, came.
    token_times: when events with tokens came.
    num_input_tokens, num_output_tokens: as the server counts them; if it does not, what the request was made with, and
    the number of those events.
    waited: seconds that it was due before it was sent. error: why it failed; None: it did not.
    """

    sent: float
    ended: float
    num_input_tokens: int
    num_output_tokens: int = 0
    token_times: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    error: str | None = None
    waited: float = 0.0
    is_counted_by_server: bool = False

    @property
    def ttft(self) -> float | None:
        """Seconds to the first token; None if none came."""
        return self.token_times[0] - self.sent if self.token_times else None

    @property
    def itls(self) -> list[float]:
        """Seconds between events with tokens."""
        return [later - earlier for earlier, later in itertools.pairwise(self.token_times)]

    @property
    def latency(self) -> float:
        """Seconds to the end."""
        return self.ended - self.sent

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None if there were no two."""
        if self.ttft is None or self.num_output_tokens < 2:
            return None
        return (self.latency - self.ttft) / (self.num_output_tokens - 1)


class SampleReader:
    """Makes a sample of events as they come."""

    def __init__(self, endpoint: Endpoint, sent: float, num_input_tokens: int) -> None:
        self.sample = Sample(sent, sent, num_input_tokens)
        self._endpoint = endpoint

    def take(self, now: float, data: str) -> None:
        """ServerError if the event says that the request failed, or nothing that can be understood."""
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            raise ServerError("the server sent an event that is no JSON object")
        check_event(event)
        sample = self.sample
        for choice in event.get("choices") or ():
            sample.ended = now
            sample.text.append(text_of(choice))
            if self._endpoint.has_tokens(choice):
                sample.token_times.append(now)
                sample.num_output_tokens += 1
        usage = event.get("usage")
        if usage:
            sample.is_counted_by_server = True
            sample.num_input_tokens = int(usage.get("prompt_tokens") or sample.num_input_tokens)
            sample.num_output_tokens = int(usage.get("completion_tokens") or sample.num_output_tokens)
