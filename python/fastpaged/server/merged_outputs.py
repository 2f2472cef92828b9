"""Several requests of one call, read as one stream."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from fastpaged.outputs import RequestOutput

    Outputs = AsyncGenerator[RequestOutput, None]


class Indexed(NamedTuple):
    """An output, and which of the requests it is of."""

    place: int
    output: RequestOutput


async def merged(requests: Sequence[Outputs]) -> AsyncGenerator[Indexed, None]:
    """Their outputs as they come, each request's in order. The first error ends all.

    No output is taken ahead of the reader but one of each: what it misses meanwhile becomes one output in the mailbox.
    Closing it closes, and so aborts, all that have not ended.
    """
    if len(requests) == 1:
        async with aclosing(requests[0]) as only:
            async for output in only:
                yield Indexed(0, output)
        return
    arrived: asyncio.Queue[Indexed | BaseException | None] = asyncio.Queue(maxsize=1)
    readers = [asyncio.ensure_future(_read(index, request, arrived)) for index, request in enumerate(requests)]
    try:
        num_open = len(readers)
        while num_open > 0:
            item = await arrived.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield item
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _read(index: int, request: Outputs, arrived: asyncio.Queue[Indexed | BaseException | None]) -> None:
    try:
        async with aclosing(request) as outputs:
            async for output in outputs:
                await arrived.put(Indexed(index, output))
    except Exception as error:
        await arrived.put(error)
    else:
        await arrived.put(None)
