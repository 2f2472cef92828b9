"""GET /health, /ping, /load and /version: is it there, and does it move?"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from fastpaged import _core
from fastpaged.server.service import Service

router = APIRouter(tags=["operation"])


@router.head("/health", include_in_schema=False)
@router.get("/health", responses={503: {"description": "It takes no requests, or those that run do not advance."}})
async def health(request: Request) -> JSONResponse:
    """Ok while the engine is idle or advances; else 503 with "stalled", "draining" or "dead"."""
    service = Service.of(request)
    status, progress = service.condition()
    body: dict[str, Any] = {"status": status, "num_unfinished": progress.num_unfinished}
    if progress.num_unfinished > 0:
        body["seconds_since_progress"] = round(progress.seconds_since_progress, 3)
    return JSONResponse(body, 200 if status == "ok" else 503)


@router.get("/ping", responses={503: {"description": "As /health."}})
async def ping(request: Request) -> JSONResponse:
    """As /health, for who asks by this name."""
    return await health(request)


@router.get("/load")
async def load(request: Request) -> dict[str, int]:
    """How many requests are being answered."""
    return {"server_load": Service.of(request).num_in_flight}


@router.get("/version")
async def version() -> dict[str, str]:
    """Of fastpaged."""
    return {"version": _core.__version__}
