"""`fastpaged run-batch`: the requests of a file, answered into another."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING, Any

from fastpaged import param_checks as check
from fastpaged.cli.engine_options import MODEL_HELP, add_engine_options, engine_arguments
from fastpaged.errors import InvalidRequestError
from fastpaged.progress import ProgressBar

if TYPE_CHECKING:
    from fastpaged.server.batch_file import BatchFile

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
    """Answers what is not answered yet. Returns the exit status: 1 if a request failed, now or in an earlier run."""
    from fastpaged.errors import EngineDeadError
    from fastpaged.server.batch_file import BatchFile

    source, target = _files(args)
    if "at_once" in args:
        check.integer("at_once", args.at_once, 1, 1 << 20, "an integer from 1 to 2**20")
    batch = BatchFile(source, target)
    total, pending = len(batch.lines), len(batch.pending)
    if pending < total:
        print(f"{total - pending} of {total} requests were answered before", file=sys.stderr)
    stopped = ""
    try:
        if pending > 0:
            _answer(batch, args)
    except EngineDeadError as error:
        stopped = f"fastpaged: error: {error}"
        return EXIT_SOME_FAILED
    except KeyboardInterrupt:
        stopped = "interrupted"
        raise
    finally:
        left, failed = len(batch.pending), batch.num_failed
        more = f", {left} left: run it again for them" if left else ""
        if stopped:
            print(stopped, file=sys.stderr)
        print(f"{total - left - failed} answered, {failed} failed{more}: {target}", file=sys.stderr)
    return EXIT_SOME_FAILED if failed else 0


def _files(args: argparse.Namespace) -> tuple[str, str]:
    given = vars(args)
    files = list(given.get("files", []))
    for name in ("input_file", "output_file"):
        if name in given:
            files.append(given[name])
    if len(files) != 2:
        raise InvalidRequestError(f"run-batch needs a file of requests and one for answers, got {len(files)} files")
    return files[0], files[1]


def _answer(batch: BatchFile, args: argparse.Namespace) -> None:
    from fastpaged import AsyncLLMEngine, EngineArgs
    from fastpaged.server.app import make_app
    from fastpaged.server.settings import ServerSettings

    bar = ProgressBar(sys.stderr) if sys.stderr.isatty() else None
    arguments = EngineArgs(model=args.model, **engine_arguments(args))
    settings = ServerSettings(
        served_model_names=tuple(vars(args).get("served_model_name", ())), log_requests=False, max_body_bytes=1 << 30
    )
    total, done = len(batch.pending), 0

    def show() -> None:
        nonlocal done
        done += 1
        if bar is not None:
            bar("requests", done, total)

    try:
        engine = AsyncLLMEngine.from_engine_args(arguments, progress=bar)
        try:
            at_once = vars(args).get("at_once", 4 * engine.max_num_seqs)  # the engine always has the next ones
            asyncio.run(batch.run(make_app(engine, settings, args.model), at_once, show))
        finally:
            engine.shutdown()
    finally:
        if bar is not None:
            bar.clear()
