"""Several requests of one call, read as one stream."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from fastpaged.outputs import RequestOutput

    Outputs = AsyncGenerator[RequestOutput, None]

_AT_ONCE = 16  # are started before others have their turn on the event loop, for their prompts are tokenised then


class Indexed(NamedTuple):
    """An output, and which of the requests it is of."""

    place: int
    output: RequestOutput


async def merged(requests: Sequence[Outputs]) -> AsyncGenerator[Indexed, None]:
    """Their outputs as they come, each request's in order. The first error ends all, and goes before outputs that
    came, so that what is refused is refused as a whole.

    About one output of each is taken ahead of the reader: what else it misses becomes one output in the mailbox.
    Closing it closes, and so aborts, all that have not ended.
    """
    if len(requests) == 1:
        async with aclosing(requests[0]) as only:
            async for output in only:
                yield Indexed(0, output)
        return
    arrived: asyncio.Queue[Indexed | None] = asyncio.Queue(len(requests))
    errors: list[Exception] = []
    readers: list[asyncio.Task[None]] = []
    try:
        for place, request in enumerate(requests):
            readers.append(asyncio.ensure_future(_read(place, request, arrived, errors)))
            if place % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            if errors:
                break
        await asyncio.sleep(0)
        num_open = len(readers)
        while num_open > 0:
            item = await arrived.get()
            if errors:
                raise errors[0]
            if item is None:
                num_open -= 1
            else:
                yield item
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        for request in requests:
            await request.aclose()  # also those that nobody began to read


async def _read(place: int, request: Outputs, arrived: asyncio.Queue[Indexed | None], errors: list[Exception]) -> None:
    try:
        async with aclosing(request) as outputs:
            async for output in outputs:
                await arrived.put(Indexed(place, output))
    except Exception as error:
        errors.append(error)
    await arrived.put(None)
