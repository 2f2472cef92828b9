"""`fastpaged serve`: a model behind an OpenAI-compatible HTTP API."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from fastpaged.cli.engine_options import MODEL_HELP, add_engine_options, engine_arguments
from fastpaged.progress import ProgressBar

_FIELDS = ("host", "port", "uds", "shutdown_timeout")


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the subcommand to the parser of `fastpaged`."""
    parser = commands.add_parser(
        "serve",
        help="serve a model over HTTP, as OpenAI's API",
        description="Serve a model over HTTP: /v1/completions, /v1/chat/completions and what belongs to them, as "
        "OpenAI's API has it; /docs lists every route.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    group = parser.add_argument_group("server")
    group.add_argument("--host", metavar="ADDRESS", help="to listen on (default: 127.0.0.1; 0.0.0.0: all)")
    group.add_argument("--port", type=int, metavar="N", help="to listen on (default: 8000)")
    group.add_argument("--uds", metavar="PATH", help="a unix socket to listen on instead")
    group.add_argument(
        "--shutdown-timeout",
        type=float,
        metavar="S",
        help="seconds that running requests have at the end (default: 30)",
    )
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    """Serves until it is told to end."""
    from fastpaged import AsyncLLMEngine, EngineArgs
    from fastpaged.server.run_server import run_server
    from fastpaged.server.settings import ServerSettings

    given = vars(args)
    settings = ServerSettings(**{name: given[name] for name in _FIELDS if name in given})
    bar = ProgressBar(sys.stderr) if sys.stderr.isatty() else None
    engine_args = EngineArgs(model=args.model, **engine_arguments(args))
    run_server(AsyncLLMEngine.from_engine_args(engine_args, progress=bar), settings, args.model)
    return 0
