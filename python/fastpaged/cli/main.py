"""The command's frame: which subcommand runs, and how errors become one line and an exit status.

0: done. 1: the request itself failed. 2: the user's to mend, one line on stderr. 130: Ctrl-C. 141: the reader of a pipe
went away. Anything else is a bug of ours and shows its traceback. A stream that was closed before we started (>&-) is
written to nowhere.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from fastpaged.__main__ import EXIT_INTERRUPTED
from fastpaged.client.server_error import ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_REQUEST_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    try:
        _open_missing_streams()
        args = _parser().parse_args(argv)
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more on its way out; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except (ValueError, OSError) as error:  # every typed error of a bad argument or file is one of the two
        return _say(error, EXIT_USER_ERROR)
    except ServerError as error:
        return _say(error, EXIT_REQUEST_FAILED)


def _say(error: Exception, status: int) -> int:
    print(f"fastpaged: error: {' '.join(str(error).split())}", file=sys.stderr)
    return status


def _open_missing_streams() -> None:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # for the process's life


def _parser() -> argparse.ArgumentParser:
    from fastpaged.cli import (  # here, where Ctrl-C is caught
        bench,
        cache,
        chat,
        collect_env,
        complete,
        generate,
        replay_recording,
        run_batch,
        serve,
        top,
    )

    parser = _Parser(
        prog="fastpaged", description="Generate text with a language model on this machine.", allow_abbrev=False
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    generate.add_parser(commands)
    chat.add_parser(commands)
    complete.add_parser(commands)
    serve.add_parser(commands)
    run_batch.add_parser(commands)
    bench.add_parser(commands)
    replay_recording.add_parser(commands)
    cache.add_parser(commands)
    top.add_parser(commands)
    collect_env.add_parser(commands)
    return parser


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USER_ERROR, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


class _Version(argparse.Action):
    """Reads the version only when asked: it lives in the extension module."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import fastpaged

        print(f"fastpaged {fastpaged.__version__}")
        parser.exit()
