"""Sends requests when they are due, and waits for all of their answers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from fastpaged.client.bench_request import BenchRequest
    from fastpaged.client.sample import Sample


@dataclass(frozen=True)
class Run:
    """started: when its first request was due, on the clock of the samples, which are in the order of the requests."""

    samples: list[Sample]
    started: float

    @property
    def duration(self) -> float:
        """Seconds until the last answer ended."""
        return max(sample.ended for sample in self.samples) - self.started


async def run_load(
    requests: Sequence[BenchRequest],
    arrivals: Sequence[float],
    send: Callable[[BenchRequest], Awaitable[Sample]],
    *,
    max_concurrency: int | None = None,
    on_done: Callable[[int], None] = lambda done: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Run:
    """arrivals: seconds from now, one per request, ascending. max_concurrency: so many are out at a time, and others
    wait in the order in which they were due; None: no limit. on_done: is told how many are done."""
    slots = asyncio.Semaphore(len(requests) if max_concurrency is None else max_concurrency)
    started, num_done = clock(), 0

    async def one(request: BenchRequest, due: float) -> Sample:
        nonlocal num_done
        async with slots:
            waited = max(0.0, clock() - due)
            sample = await send(request)
        sample.waited = waited
        num_done += 1
        on_done(num_done)
        return sample

    tasks = []
    try:
        for request, arrival in zip(requests, arrivals, strict=True):
            due = started + arrival
            if (delay := due - clock()) > 0:
                await asyncio.sleep(delay)
            tasks.append(asyncio.create_task(one(request, due)))
        return Run(list(await asyncio.gather(*tasks)), started)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
