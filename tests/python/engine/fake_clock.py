"""A clock that goes when it is told to, and what the tests of time and turns share."""

from __future__ import annotations

from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.outputs import RequestOutput

SECOND = 10**9


class FakeClock:
    """Nanoseconds, from an odd place on: nothing may take it for a duration."""

    def __init__(self) -> None:
        self.now = 7 * SECOND + 1

    def __call__(self) -> int:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


def on_fake_clock(engine: LLMEngine) -> FakeClock:
    """The engine's clock from now on. A step of it takes no time: nothing is measured."""
    clock = FakeClock()
    engine.clock.source = clock
    return clock


def finished_by(outputs: list[RequestOutput]) -> dict[str, tuple[str | None, int | str | None]]:
    """How requests have ended, by id."""
    return {
        output.request_id: (output.outputs[0].finish_reason, output.outputs[0].stop_reason)
        for output in outputs
        if output.finished
    }


def run_to_the_end(engine: LLMEngine, max_steps: int = 2000) -> dict[str, RequestOutput]:
    """The finished outputs; the core's invariants hold after each step."""
    finished: dict[str, RequestOutput] = {}
    for _ in range(max_steps):
        if not engine.has_unfinished_requests():
            return finished
        finished |= {output.request_id: output for output in engine.step() if output.finished}
        engine.scheduler.check_invariants()
    raise AssertionError(f"unfinished after {max_steps} steps")


def assert_nothing_is_held(engine: LLMEngine) -> None:
    """Blocks, requests, and places in the queue."""
    scheduler = engine.scheduler
    scheduler.check_invariants()
    assert (scheduler.num_waiting, scheduler.num_running, scheduler.num_swapped) == (0, 0, 0)
    assert scheduler.num_free_blocks == scheduler.num_blocks
    assert scheduler.num_free_host_blocks == scheduler.num_host_blocks
    assert not scheduler.has_unfinished()
    assert (engine._outputs.num_waiting, engine._outputs.num_waiting_tokens) == (0, 0)
