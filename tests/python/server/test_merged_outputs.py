"""Several requests of one call are read as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import pytest

from fastpaged.server.merged_outputs import merged


class Source:
    """Yields 0, 1, ... as far as it is let: it counts, and knows whether it was closed."""

    def __init__(self, count: int, error: Exception | None = None, gate: asyncio.Event | None = None) -> None:
        self.count = count
        self.error = error
        self.gate = gate
        self.num_yielded = 0
        self.is_closed = False

    async def outputs(self) -> AsyncGenerator[Any, None]:
        try:
            if self.gate is not None:
                await self.gate.wait()
            for number in range(self.count):
                self.num_yielded += 1
                yield number
                await asyncio.sleep(0)
            if self.error is not None:
                raise self.error
        finally:
            self.is_closed = True


async def read(sources: list[Source], most: int = 10**9) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    async with aclosing(merged([source.outputs() for source in sources])) as outputs:
        async for place, output in outputs:
            found.append((place, cast("int", output)))
            if len(found) == most:
                break
    return found


@pytest.mark.parametrize("num_sources", [1, 2, 50])
def test_each_ones_outputs_come_all_and_in_order(num_sources: int) -> None:
    sources = [Source(place % 5) for place in range(num_sources)]
    found = asyncio.run(read(sources))
    for place, source in enumerate(sources):
        assert [output for which, output in found if which == place] == list(range(source.count))
        assert source.is_closed


def test_nobody_waits_behind_one_that_has_much_to_say() -> None:
    found = asyncio.run(read([Source(1000), Source(3), Source(1000)]))
    assert max(at for at, (place, _) in enumerate(found) if place == 1) < 20


def test_little_is_taken_ahead_of_a_slow_reader() -> None:
    async def slowly() -> int:
        sources = [Source(1000) for _ in range(4)]
        async with aclosing(merged([source.outputs() for source in sources])) as outputs:
            for _ in range(20):
                await anext(outputs)
                for _ in range(50):
                    await asyncio.sleep(0)
            return sum(source.num_yielded for source in sources)

    assert asyncio.run(slowly()) <= 20 + 2 * 4


@pytest.mark.parametrize("most", [1, 7])
def test_closing_it_closes_all(most: int) -> None:
    sources = [Source(1000) for _ in range(40)]
    asyncio.run(read(sources, most))
    assert all(source.is_closed or source.num_yielded == 0 for source in sources)
    assert any(source.is_closed for source in sources)


@pytest.mark.parametrize("num_sources", [1, 3, 40])
def test_the_first_error_ends_all(num_sources: int) -> None:
    sources = [Source(1000) for _ in range(num_sources - 1)] + [Source(2, ValueError("of one"))]
    with pytest.raises(ValueError, match="of one"):
        asyncio.run(read(sources))
    assert all(source.is_closed or source.num_yielded == 0 for source in sources)


def test_what_is_refused_at_once_is_refused_before_any_output() -> None:
    sources = [Source(10) for _ in range(30)] + [Source(0, ValueError("refused"))]

    async def begin() -> None:
        async with aclosing(merged([source.outputs() for source in sources])) as outputs:
            await anext(outputs)

    with pytest.raises(ValueError, match="refused"):
        asyncio.run(begin())


def test_cancelling_the_reader_closes_all() -> None:
    async def cancelled() -> list[Source]:
        sources = [Source(3, gate=asyncio.Event()) for _ in range(3)]
        reading = asyncio.ensure_future(read(sources))
        for _ in range(5):
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        return sources

    assert all(source.is_closed for source in asyncio.run(cancelled()))
