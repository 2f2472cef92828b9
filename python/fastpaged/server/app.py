"""The app: every route of the server, and what surrounds them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from fastpaged import _core
from fastpaged.errors import FastpagedError
from fastpaged.server import abort, chat_completions, completions, health, kv_route, metrics, models, prefixes, tokenize
from fastpaged.server.access import Access
from fastpaged.server.ascii_json import AsciiJSONResponse
from fastpaged.server.client_watch import ClientGoneError
from fastpaged.server.errors import ApiError, api_error
from fastpaged.server.http_count import HttpCount
from fastpaged.server.request_body import RequestBody
from fastpaged.server.request_report import RequestLog
from fastpaged.server.service import Service
from fastpaged.server.unexpected import Unexpected

if TYPE_CHECKING:
    from fastapi import Request
    from fastapi.responses import Response

    from fastpaged.engine.async_llm_engine import AsyncLLMEngine
    from fastpaged.server.settings import ServerSettings


def make_app(engine: AsyncLLMEngine, settings: ServerSettings, model: str) -> FastAPI:
    """An ASGI app that serves an engine, which stays the caller's to shut down. model: see Service."""
    docs: dict[str, Any] = {} if settings.enable_docs else {"docs_url": None, "redoc_url": None, "openapi_url": None}
    app = FastAPI(title="fastpaged", version=_core.__version__, root_path=settings.root_path, **docs)
    service = app.state.service = Service(engine, settings, model)
    if settings.log_requests:
        service.readers.append(RequestLog())
    for routes in (models, completions, chat_completions, tokenize, health, abort, metrics, kv_route, prefixes):
        app.include_router(routes.router)
    for kind in (ApiError, FastpagedError):
        app.add_exception_handler(kind, _answer)
    app.add_exception_handler(ClientGoneError, _answer_nobody)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)
    # The last one added is the first one asked.
    app.add_middleware(Unexpected)
    app.add_middleware(RequestBody, settings=settings)
    app.add_middleware(Access, keys=settings.api_keys, root_path=settings.root_path)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.allowed_origins), allow_methods=["*"], allow_headers=["*"]
        )
    paths = {path for route in app.routes if (path := getattr(route, "path", None))}
    app.add_middleware(HttpCount, service=service, paths=paths)
    return app


async def _answer(_: Request, error: Exception) -> Response:
    known = api_error(error)
    return AsciiJSONResponse(known.body, known.status, known.headers)


async def _answer_nobody(_: Request, __: Exception) -> Response:
    return JSONResponse({}, 499)


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    param = str(first["loc"][1]) if len(first["loc"]) > 1 else None  # the rest is of its type's forms
    what = f"{param}: {first['msg']}" if param else str(first["msg"])
    return await _answer(request, ApiError(400, what, param=param))


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return await _answer(request, ApiError(error.status_code, str(error.detail), headers=error.headers))
