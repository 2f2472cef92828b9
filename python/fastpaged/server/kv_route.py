"""GET /kv: who holds what of the KV memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from fastpaged.server.service import Service

if TYPE_CHECKING:
    from fastpaged.kv_snapshot import KVSnapshot

router = APIRouter(tags=["kv cache"])


@router.get("/kv")
async def kv_snapshot(request: Request, blocks: bool = True) -> JSONResponse:
    """The KV memory between two steps. blocks=false: without the blocks one by one."""
    snapshot = await Service.of(request).engine.kv_snapshot()
    return await asyncio.to_thread(_answer, snapshot, blocks)  # a pool has many blocks


def _answer(snapshot: KVSnapshot, with_blocks: bool) -> JSONResponse:
    body: dict[str, Any] = snapshot.to_dict()
    if not with_blocks:
        for tier in body["tiers"].values():
            del tier["blocks"]
    return JSONResponse(body)
