"""GET /v1/models: what there is to ask."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from fastpaged.server.errors import ApiError
from fastpaged.server.service import Service

router = APIRouter(tags=["models"])


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """The model under each of its names."""
    service = Service.of(request)
    return {"object": "list", "data": [_card(service, name) for name in service.model_names]}


@router.get("/v1/models/{name:path}")
async def get_model(name: str, request: Request) -> dict[str, Any]:
    """One of them."""
    service = Service.of(request)
    if name not in service.model_names:
        raise ApiError(404, f"The model `{name:.200}` does not exist.", param="model")
    return _card(service, name)


def _card(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "fastpaged",
        "root": service.model,
        "parent": None,
        "max_model_len": service.engine.max_model_len,
        "permission": [],
    }
