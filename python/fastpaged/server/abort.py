"""POST /abort: ends requests by their ids."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from fastpaged.server.service import Service

router = APIRouter(tags=["operation"])


class AbortRequest(BaseModel):
    """The id of an answer, or that which the request was given; or several."""

    model_config = ConfigDict(extra="allow", strict=True)
    request_id: str | Annotated[list[str], Field(max_length=4096)] = Field(examples=["cmpl-0123456789abcdef"])


@router.post("/abort")
async def abort(body: AbortRequest, request: Request) -> dict[str, list[str]]:
    """{"aborted": the ids of the answers that end with it}. An id that is not (or no longer) here is no error."""
    service = Service.of(request)
    asked = [body.request_id] if isinstance(body.request_id, str) else body.request_id
    calls = [call for name in asked for call in service.calls_named(name)]
    await service.abort(calls)
    return {"aborted": calls}
