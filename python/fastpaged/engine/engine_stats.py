"""EngineStats: what an engine has done since it was made, in numbers that anybody may read at any moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fastpaged.engine.histogram import Histogram, one_two_five

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastpaged import _core
    from fastpaged.engine.admission import EngineRequest

_LATENCY = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_BETWEEN_TOKENS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_FEW = (1.0, 2.0, 5.0, 10.0, 20.0)
_TOKENS_OF_A_STEP = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)

FINISH_REASONS = ("stop", "length", "abort", "error")
REJECTIONS = ("queue_full", "invalid")
PHASES = ("schedule", "copy", "compute", "update", "output")


class RequestEnd(NamedTuple):
    """What is known of a request when it ends. Times are seconds of one clock; None: it never came to that."""

    reason: str  # of FINISH_REASONS: "error" or "abort" if any of its answers has that, else its first answer's
    stop_reason: int | str | None
    num_tokens: int  # generated, of all branches
    num_longest: int  # of the branch with most
    num_cached: int  # of the prompt
    num_preemptions: int
    queued: float
    scheduled: float | None
    first: float | None
    last: float | None
    now: float


class EngineStats:
    """Counted on the engine's thread; each number is whole for whoever reads it meanwhile.

    A request is started when it is queued and finished once, by one reason: started = finished by every reason +
    running + waiting, between any two steps.
    What a preempted request computes again counts as recomputed, never as a prompt's or as cached.
    """

    def __init__(self, max_model_len: int) -> None:
        tokens = one_two_five(max_model_len)
        self.num_started = self.num_running = self.num_waiting = self.num_preempted = 0  # of running: the last
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.expired = {"deadline": 0, "queue_timeout": 0}  # of those aborted
        self._rejected = dict.fromkeys(REJECTIONS, 0)
        self._rejected_early = dict.fromkeys(REJECTIONS, 0)  # of another thread than the engine's
        self.prompt_tokens = {"computed": 0, "device_cache": 0, "host_cache": 0}  # of prompts that were let in
        self.num_generation_tokens = 0
        self.num_prefix_queries = 0  # tokens of prompts that were looked up
        self.num_preemptions = self.num_tokens_recomputed = 0
        self.bytes_swapped = {"out": 0, "in": 0}
        self.num_steps = self.num_failed_steps = 0
        self.phase_seconds = dict.fromkeys(PHASES, 0.0)
        self.num_blocks = self.num_free_blocks = 0
        self.time_to_first_token = Histogram(_FIRST_TOKEN)
        self.between_tokens = Histogram(_BETWEEN_TOKENS)
        self.time_per_output_token = Histogram(_BETWEEN_TOKENS)
        self.e2e, self.queue_time, self.prefill_time = (Histogram(_LATENCY) for _ in range(3))
        self.decode_time, self.inference_time = Histogram(_LATENCY), Histogram(_LATENCY)
        self.request_prompt_tokens, self.request_generation_tokens = Histogram(tokens), Histogram(tokens)
        self.max_generation_tokens, self.params_max_tokens = Histogram(tokens), Histogram(tokens)
        self.computed_prompt_tokens = Histogram(tokens)
        self.params_n, self.preemptions = Histogram(_FEW), Histogram((0.0, *_FEW))
        self.step_tokens = Histogram(_TOKENS_OF_A_STEP)

    @property
    def kv_usage(self) -> float:
        """The share of the KV pool's blocks that somebody holds."""
        return 1.0 - self.num_free_blocks / self.num_blocks if self.num_blocks else 0.0

    def note_started(self) -> None:
        """A request was queued."""
        self.num_started += 1

    @property
    def rejected(self) -> dict[str, int]:
        """Requests that were refused, by REJECTIONS."""
        return {reason: count + self._rejected_early[reason] for reason, count in self._rejected.items()}

    def note_rejected(self, reason: str) -> None:
        """One was refused: of REJECTIONS."""
        self._rejected[reason] += 1

    def note_rejected_early(self, reason: str) -> None:
        """One was refused before the engine heard of it: for one thread, that of a server's event loop."""
        self._rejected_early[reason] += 1

    def note_tokens(self, count: int) -> None:
        """So many were generated."""
        self.num_generation_tokens += count

    def note_first_token(self, seconds: float) -> None:
        """A request has its first token, so long after it came."""
        self.time_to_first_token.observe(seconds)

    def note_next_token(self, seconds: float) -> None:
        """One has gone on, so long after it last did. Branches that go on in one step count once."""
        self.between_tokens.observe(seconds)

    def note_tables(self, scheduler: _core.Scheduler, num_unfinished: int, num_waiting: int) -> None:
        """As they are between two steps."""
        self.num_waiting = num_waiting
        self.num_running = num_unfinished - num_waiting
        self.num_preempted = scheduler.num_waiting - num_waiting + scheduler.num_swapped
        self.num_blocks = scheduler.num_blocks
        self.num_free_blocks = scheduler.num_free_blocks

    def note_step(
        self, num_tokens: int, seconds: Sequence[float], costs: _core.SchedulerStats, block_bytes: int
    ) -> None:
        """One has ended. seconds: by phase. costs: the scheduler's, since it was made."""
        self.num_steps += 1
        self.step_tokens.observe(num_tokens)
        for phase, duration in zip(PHASES, seconds, strict=True):
            self.phase_seconds[phase] += duration
        found, on_host = costs.num_prefix_tokens_found, costs.num_host_prefix_tokens_found
        self.prompt_tokens["device_cache"] = found - on_host
        self.prompt_tokens["host_cache"] = on_host
        self.num_prefix_queries = costs.num_prefix_tokens_looked_up
        self.num_preemptions = costs.num_preemptions
        self.num_tokens_recomputed = costs.num_tokens_recomputed
        self.bytes_swapped["out"] = costs.num_blocks_swapped_out * block_bytes
        self.bytes_swapped["in"] = costs.num_blocks_swapped_in * block_bytes

    def note_let_in(self, num_prompt_tokens: int, num_cached: int) -> None:
        """A request begins, for the first time, and this much of its prompt is there."""
        self.prompt_tokens["computed"] += num_prompt_tokens - num_cached

    def note_finished(self, request: EngineRequest, end: RequestEnd) -> None:
        """One has ended."""
        self.finished[end.reason] += 1
        if end.reason == "abort" and end.stop_reason in self.expired:
            self.expired[str(end.stop_reason)] += 1
        params, num_prompt_tokens = request.params, len(request.prompt_token_ids)
        self.e2e.observe(end.now - end.queued)
        self.request_prompt_tokens.observe(num_prompt_tokens)
        self.request_generation_tokens.observe(end.num_tokens)
        self.max_generation_tokens.observe(end.num_longest)
        self.params_n.observe(params.n)
        self.params_max_tokens.observe(request.max_tokens)
        self.preemptions.observe(end.num_preemptions)
        if end.scheduled is None:
            return
        self.queue_time.observe(end.scheduled - end.queued)
        self.computed_prompt_tokens.observe(num_prompt_tokens - end.num_cached)
        if end.first is None or end.last is None:
            return
        self.prefill_time.observe(end.first - end.scheduled)
        self.decode_time.observe(end.last - end.first)
        self.inference_time.observe(end.last - end.scheduled)
        if end.num_longest > 1:
            self.time_per_output_token.observe((end.last - end.first) / (end.num_longest - 1))
