"""/v1/cache/prefixes: prefixes whose KV blocks stay, whoever comes and goes."""

from __future__ import annotations

import time
import uuid
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from fastpaged.server.client_watch import while_client_stays
from fastpaged.server.errors import ApiError
from fastpaged.server.service import Service

if TYPE_CHECKING:
    from fastpaged.engine.pinned_prefixes import PinnedPrefix, Prefix

router = APIRouter(tags=["kv cache"])


class PinRequest(BaseModel):
    """Either a prompt, a text or token ids, or messages. ttl: seconds until it is unpinned; null: never."""

    model_config = ConfigDict(extra="allow", strict=True)
    model: str | None = None
    prompt: str | Annotated[list[int], Field(fail_fast=True)] | None = Field(
        None, examples=["You are a helpful assistant."]
    )
    messages: list[dict[str, Any]] | None = None
    ttl: float | None = None
    cache_salt: str | None = None


@router.post("/v1/cache/prefixes")
async def pin_prefix(body: PinRequest, request: Request) -> dict[str, Any]:
    """Computes what is not there of a prefix, and keeps it."""
    service = Service.of(request)
    service.check_model(body.model)
    prefix: Prefix | None = body.messages if body.prompt is None else body.prompt
    if prefix is None or (body.messages is not None and body.prompt is not None):
        raise ApiError(400, "prompt or messages must be given, and not both", param="prompt")
    name = f"pin-{uuid.uuid4().hex}"
    engine_ids = service.begin(name)
    try:
        pinning = service.engine.pin_prefix(prefix, body.ttl, cache_salt=body.cache_salt)
        return _shown(await while_client_stays(request.receive, pinning))
    finally:
        service.end(name, engine_ids)


@router.get("/v1/cache/prefixes")
async def list_prefixes(request: Request) -> dict[str, Any]:
    """The pinned ones, the oldest first."""
    pins = await Service.of(request).engine.pinned_prefixes()
    return {"object": "list", "data": [_shown(pin) for pin in pins]}


@router.delete("/v1/cache/prefixes/{prefix_id}")
async def unpin_prefix(prefix_id: int, request: Request) -> dict[str, Any]:
    """Its blocks are as others are from then on."""
    if not await Service.of(request).engine.unpin_prefix(prefix_id):
        raise ApiError(404, f"There is no pinned prefix {prefix_id}.", param="prefix_id")
    return {"id": prefix_id, "object": "prefix", "deleted": True}


def _shown(pin: PinnedPrefix) -> dict[str, Any]:
    """With the seconds that it has left rather than a point of this process's clock, and without the salt: a secret."""
    body = {"object": "prefix", **asdict(pin)}
    expiry = body.pop("expires_ts")
    del body["cache_salt"]
    return {**body, "expires_in": None if expiry is None else max(0.0, expiry - time.monotonic())}
