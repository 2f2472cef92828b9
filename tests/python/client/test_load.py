"""A load on a clock of its own: when requests go out, how many are out at a time, and how long it all takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from client.virtual_time import run_in_virtual_time

from fastpaged.client.bench_request import BenchRequest
from fastpaged.client.load import Run, run_load
from fastpaged.client.sample import Sample

Clock = Callable[[], float]


def requests(*seconds: float) -> list[BenchRequest]:
    """Of which each takes so long."""
    return [BenchRequest(str(duration), 1, 1) for duration in seconds]


def run(durations: Sequence[float], arrivals: Sequence[float], max_concurrency: int | None = None) -> Run:
    async def main(clock: Clock) -> Run:
        await asyncio.sleep(5)  # a clock that is not at 0

        async def send(request: BenchRequest) -> Sample:
            sent = clock()
            await asyncio.sleep(float(str(request.prompt)))
            return Sample(sent, clock(), 1)

        return await run_load(requests(*durations), arrivals, send, max_concurrency=max_concurrency, clock=clock)

    return run_in_virtual_time(main)


def sent(result: Run) -> list[float]:
    return [sample.sent - result.started for sample in result.samples]


def test_requests_go_out_when_they_are_due_whatever_the_others_do() -> None:
    result = run([10, 1, 1], [0, 2, 2.5])
    assert sent(result) == pytest.approx([0, 2, 2.5])
    assert [sample.latency for sample in result.samples] == pytest.approx([10, 1, 1])
    assert result.duration == pytest.approx(10)


def test_the_duration_is_from_the_first_arrival_to_the_last_end() -> None:
    assert run([1, 1], [0, 6]).duration == pytest.approx(7)


def test_no_more_are_out_than_allowed_and_the_others_wait_in_order() -> None:
    result = run([4, 1, 1, 1], [0, 0, 0, 3], max_concurrency=2)
    assert sent(result) == pytest.approx([0, 0, 1, 3])
    assert [sample.waited for sample in result.samples] == pytest.approx([0, 0, 1, 0])
    assert run([2, 2], [0, 1], max_concurrency=1).samples[1].waited == pytest.approx(1)


def test_progress_is_told_as_requests_end() -> None:
    told: list[tuple[float, int]] = []

    async def main(clock: Clock) -> None:
        async def send(request: BenchRequest) -> Sample:
            await asyncio.sleep(float(str(request.prompt)))
            return Sample(0, clock(), 1)

        await run_load(requests(3, 1), [0, 0], send, on_done=lambda done: told.append((clock(), done)), clock=clock)

    run_in_virtual_time(main)
    assert told == [(1, 1), (3, 2)]


@pytest.mark.parametrize("arrivals", [[0.0, 0.0], [0.0, 50.0]])
def test_a_load_that_is_given_up_gives_up_its_requests(arrivals: list[float]) -> None:
    ended = []

    async def main(clock: Clock) -> None:
        async def send(request: BenchRequest) -> Sample:
            try:
                await asyncio.sleep(100)
            finally:
                ended.append(clock())
            raise AssertionError

        load = asyncio.create_task(run_load(requests(1, 1), arrivals, send, clock=clock))
        await asyncio.sleep(1)
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load

    run_in_virtual_time(main)
    assert ended == [1.0] * arrivals.count(0.0)
