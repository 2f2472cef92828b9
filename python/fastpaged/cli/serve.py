"""`fastpaged serve`: a model behind an OpenAI-compatible HTTP API."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from fastpaged.cli.engine_options import MODEL_HELP, add_engine_options, engine_arguments
from fastpaged.cli.serve_options import add_serve_options, server_settings
from fastpaged.progress import ProgressBar


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the subcommand to the parser of `fastpaged`."""
    parser = commands.add_parser(
        "serve",
        help="serve a model over HTTP, as OpenAI's API",
        description="Serve a model over HTTP: /v1/completions, /v1/chat/completions and what belongs to them, as "
        "OpenAI's API has it; /docs lists every route. The first Ctrl-C or SIGTERM lets running requests finish, the "
        "second ends them.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    add_serve_options(parser)
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    """Serves until it is told to end."""
    from fastpaged import AsyncLLMEngine, EngineArgs
    from fastpaged.server.logging_setup import set_up_logging
    from fastpaged.server.run_server import listening_sockets, run_server

    settings = server_settings(args)
    if settings.otlp_traces_endpoint is not None:
        import fastpaged.server.otel_traces  # noqa: F401 - which may not be installed
    set_up_logging()
    sockets = listening_sockets(settings)  # before a model is loaded for nothing
    try:
        bar = ProgressBar(sys.stderr) if sys.stderr.isatty() else None
        engine_args = EngineArgs(model=args.model, disable_log_stats=False, **engine_arguments(args))
        try:
            engine = AsyncLLMEngine.from_engine_args(engine_args, progress=bar)
        finally:
            if bar is not None:
                bar.clear()
        run_server(engine, settings, args.model, sockets)
    finally:
        for listener in sockets:
            listener.close()
    return 0
