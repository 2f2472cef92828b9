"""Comments in a stream that has nothing to say for a while, so that nobody on the way takes it for dead."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

COMMENT = b": keep-alive\n\n"


async def with_comments(events: AsyncGenerator[bytes, None], interval: float) -> AsyncGenerator[bytes, None]:
    """The events, and a comment whenever none has come for `interval` seconds. Closing it closes them."""
    async with aclosing(events):
        while True:
            coming = asyncio.ensure_future(anext(events, None))
            try:
                while not coming.done():
                    done, _ = await asyncio.wait({coming}, timeout=interval)
                    if not done:
                        yield COMMENT
            finally:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
            event = coming.result()
            if event is None:
                return
            yield event
