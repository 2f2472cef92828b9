"""An event loop whose time goes on only when it has nothing to do: sleeping takes none, and every run is the same."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Skipping(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everything waits for what never comes"
        self.now += max(0.0, timeout)
        return super().select(0)


def run_in_virtual_time(main: Callable[[Callable[[], float]], Coroutine[Any, Any, T]]) -> T:
    """main: is given the clock, which starts at 0."""
    selector = _Skipping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        return loop.run_until_complete(main(loop.time))
    finally:
        loop.close()
