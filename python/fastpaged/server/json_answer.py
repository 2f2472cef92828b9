"""An answer in one piece, which others need not wait for while it is written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fastapi.responses import JSONResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fastpaged.outputs import RequestOutput

_MANY = 2000  # logprobs, which take some milliseconds to write


async def json_answer(
    outputs: list[RequestOutput], body: Callable[[list[RequestOutput]], dict[str, Any]], headers: Mapping[str, str]
) -> JSONResponse:
    """body: makes of the outputs what is answered, on another thread where they hold many logprobs."""

    def made() -> JSONResponse:
        return JSONResponse(body(outputs), headers=headers)

    return await asyncio.to_thread(made) if _num_logprobs(outputs) > _MANY else made()


def _num_logprobs(outputs: Iterable[RequestOutput]) -> int:
    """About: every entry is taken to be as large as the last, for reading makes them."""
    rows = (
        entries for output in outputs for entries in (output.prompt_logprobs, *(one.logprobs for one in output.outputs))
    )
    return sum(len(entries) * len(entries[-1] or ()) for entries in rows if entries)
