"""Comments in a stream that has nothing to say for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from fastpaged.server.keep_alive import COMMENT, with_comments


async def events(gates: list[asyncio.Event], closed: list[bool]) -> AsyncGenerator[bytes, None]:
    try:
        for number, gate in enumerate(gates):
            await gate.wait()
            yield b"%d" % number
    finally:
        closed.append(True)


def test_comments_come_while_nothing_else_does_and_no_event_is_lost() -> None:
    async def run() -> list[bytes]:
        gates = [asyncio.Event() for _ in range(3)]
        gates[0].set()
        found = []
        async with aclosing(with_comments(events(gates, []), 0.001)) as all_of_them:
            async for one in all_of_them:
                found.append(one)
                if one == COMMENT:  # the next event waits for as long as it takes one to come
                    next(gate for gate in gates if not gate.is_set()).set()
        return found

    assert asyncio.run(run()) == [b"0", COMMENT, b"1", COMMENT, b"2"]


def test_events_that_come_in_time_stand_alone() -> None:
    async def run() -> list[bytes]:
        gates = [asyncio.Event() for _ in range(20)]
        for gate in gates:
            gate.set()
        return [one async for one in with_comments(events(gates, []), 3600)]

    assert asyncio.run(run()) == [b"%d" % number for number in range(20)]


def test_closing_it_closes_the_stream_that_it_waits_for() -> None:
    async def run() -> list[bool]:
        closed: list[bool] = []
        stream = with_comments(events([asyncio.Event()], closed), 0.001)
        assert await anext(stream) == COMMENT
        await stream.aclose()
        return closed

    assert asyncio.run(run()) == [True]


def test_an_error_of_the_stream_is_raised() -> None:
    async def fail() -> AsyncGenerator[bytes, None]:
        yield b"0"
        raise ValueError("lost")

    async def run() -> None:
        async for _ in with_comments(fail(), 3600):
            pass

    with pytest.raises(ValueError, match="lost"):
        asyncio.run(run())
