"""`fastpaged complete`: a server continues a text."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import Any

from fastpaged.cli.generate import DEFAULT_MAX_TOKENS
from fastpaged.cli.remote_options import add_remote_options, model_name, open_remote
from fastpaged.cli.sampling_options import add_sampling_options, sampling_arguments
from fastpaged.errors import InvalidRequestError


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the subcommand to the parser of `fastpaged`."""
    parser = commands.add_parser(
        "complete",
        help="have a server continue a text",
        description="Have a server continue a text: what it adds streams to stdout as it comes. Ctrl-C ends it, here "
        "and at the server.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="text to continue (default: all of stdin)")
    add_remote_options(parser, required=True)
    add_sampling_options(parser).add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        default=DEFAULT_MAX_TOKENS,
        help="generate at most N tokens (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the answer. What the server says against the request is a ServerError."""
    with open_remote(args) as remote:
        from fastpaged.client.remote import new_text

        prompt = _prompt(args)
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 still gets text
        body = {"model": model_name(args, remote), "prompt": prompt, **sampling_arguments(args)}
        shown = ""
        try:
            with contextlib.closing(remote.stream("/v1/completions", body)) as events:
                for event in events:
                    shown = new_text(event) or shown
                    sys.stdout.write(new_text(event))
                    sys.stdout.flush()
        finally:
            if shown and not shown.endswith("\n"):
                print(flush=True)
    return 0


def _prompt(args: argparse.Namespace) -> str:
    if "prompt" in args:
        prompt = str(args.prompt)
    elif sys.stdin is None or sys.stdin.isatty():
        raise InvalidRequestError("PROMPT must be given, or a text on stdin")
    else:
        if hasattr(sys.stdin, "reconfigure"):
            sys.stdin.reconfigure(errors="replace")
        prompt = sys.stdin.read()
    if not prompt:
        raise InvalidRequestError("PROMPT must not be empty, got ''")
    return prompt
