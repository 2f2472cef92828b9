"""Serves an engine over HTTP until the process is told to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import uvicorn

from fastpaged.server.app import make_app

if TYPE_CHECKING:
    from fastpaged.engine.async_llm_engine import AsyncLLMEngine
    from fastpaged.server.settings import ServerSettings


def run_server(engine: AsyncLLMEngine, settings: ServerSettings, model: str) -> None:
    """Blocks. The engine is shut down when it returns. model: see Service."""
    app = make_app(engine, settings, model)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        uds=settings.uds,
        ssl_keyfile=settings.ssl_keyfile,
        ssl_certfile=settings.ssl_certfile,
        root_path=settings.root_path,
        http="httptools",
        loop="uvloop",
        access_log=False,
        log_config=None,
        server_header=False,
    )
    try:
        uvicorn.Server(config).run()
    finally:
        engine.shutdown()
