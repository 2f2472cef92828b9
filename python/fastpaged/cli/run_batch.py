"""`fastpaged run-batch`: the requests of a file, answered into another."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from fastpaged.cli.engine_options import MODEL_HELP, add_engine_options, engine_arguments
from fastpaged.errors import InvalidRequestError
from fastpaged.progress import ProgressBar

EXIT_SOME_FAILED = 1


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the subcommand to the parser of `fastpaged`."""
    parser = commands.add_parser(
        "run-batch",
        help="answer a file of requests",
        description="Answer a file of requests, as OpenAI's batches have them: a line of JSON each, with custom_id, "
        "method, url and body. Answers are appended to OUT as they come; run again, it goes on where it stopped.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("files", nargs="*", metavar="IN OUT", help="a file of requests, and one for answers")
    parser.add_argument("-i", "--input-file", metavar="IN", help="the same")
    parser.add_argument("-o", "--output-file", metavar="OUT", help="the same")
    parser.add_argument("--model", required=True, metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--served-model-name", nargs="+", metavar="NAME", help="what requests may call the model")
    parser.add_argument("--at-once", type=int, metavar="N", help="requests (default: 4 times --max-num-seqs)")
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    """Answers what is not answered yet. Returns the exit status: 1 if a request of it failed."""
    from fastpaged.server.batch_file import BatchFile

    source, target = _files(args)
    batch = BatchFile(source, target)
    pending = len(batch.pending)
    if pending < len(batch.lines):
        print(f"{len(batch.lines) - pending} of {len(batch.lines)} requests were answered before", file=sys.stderr)
    if pending > 0:
        _answer(batch, args)
    print(f"{pending - batch.num_failed} answered, {batch.num_failed} failed: {target}", file=sys.stderr)
    return EXIT_SOME_FAILED if batch.num_failed else 0


def _files(args: argparse.Namespace) -> tuple[str, str]:
    given = vars(args)
    files = list(given.get("files", []))
    for name in ("input_file", "output_file"):
        if name in given:
            files.append(given[name])
    if len(files) != 2:
        raise InvalidRequestError(f"run-batch needs a file of requests and one for answers, got {len(files)} files")
    return files[0], files[1]


def _answer(batch: Any, args: argparse.Namespace) -> None:
    from fastpaged import AsyncLLMEngine, EngineArgs
    from fastpaged.server.app import make_app
    from fastpaged.server.settings import ServerSettings

    bar = ProgressBar(sys.stderr) if sys.stderr.isatty() else None
    arguments = EngineArgs(model=args.model, **engine_arguments(args))
    settings = ServerSettings(
        served_model_names=tuple(vars(args).get("served_model_name", ())), log_requests=False, max_body_bytes=1 << 30
    )
    engine = AsyncLLMEngine.from_engine_args(arguments, progress=bar)
    total, done = len(batch.pending), 0

    def show() -> None:
        nonlocal done
        done += 1
        if bar is not None:
            bar("requests", done, total)

    try:
        app = make_app(engine, settings, args.model)
        at_once = vars(args).get("at_once", 4 * engine.max_num_seqs)
        asyncio.run(batch.run(app, max(1, at_once), show))
    finally:
        if bar is not None:
            bar.clear()
        engine.shutdown()
