"""`fastpaged chat`: a conversation with a model in the terminal, or with lines that are piped in."""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastpaged.cli.engine_options import MODEL_HELP, add_engine_options, load_llm
from fastpaged.cli.messages import Messages
from fastpaged.cli.sampling_options import add_sampling_options, sampling_arguments
from fastpaged.errors import InvalidRequestError
from fastpaged.progress import ProgressBar
from fastpaged.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from fastpaged.llm import LLM
    from fastpaged.sampling_params import SamplingParams

EXIT_REQUEST_FAILED = 1
PROMPT = "> "
_HELP = "/clear forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the subcommand to the parser of `fastpaged`."""
    parser = commands.add_parser(
        "chat",
        help="talk with a model",
        description="Talk with a model: a line is a message, and the answer streams to stdout. With lines piped in, "
        f"each is answered in turn. {_HELP}.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--system", metavar="TEXT", help="a system message to begin with")
    add_sampling_options(parser).add_argument(
        "--max-tokens", type=int, metavar="N", help="end an answer after N tokens (default: the rest of the context)"
    )
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    """Loads the model and talks. Returns the exit status: 1 if an answer failed."""
    for stream in (sys.stdin, sys.stdout):
        if hasattr(stream, "reconfigure"):  # what is no text in the stream's encoding shall not end the conversation
            stream.reconfigure(errors="replace")
    bar = ProgressBar(sys.stderr) if sys.stderr.isatty() else None
    with Messages(bar), load_llm(args, bar) as llm:
        given = {"max_tokens": None} | sampling_arguments(args)
        params = replace(llm.get_default_sampling_params(), **given, output_kind=RequestOutputKind.DELTA)
        system = vars(args).get("system")
        return Conversation(llm, params, system).talk(interactive=sys.stdin is not None and sys.stdin.isatty())


class Conversation:
    """What was said so far, and the loop that goes on with it."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._first = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self._first)
        self._status = 0

    def talk(self, *, interactive: bool) -> int:
        """Until the input ends. Someone at a terminal is told of a refused message and may go on; piped lines are not
        (InvalidRequestError)."""
        if interactive:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  # lines can then be edited
            print(_HELP, file=sys.stderr)
        while True:
            try:
                line = _read_line(interactive)
            except KeyboardInterrupt:
                if not interactive:
                    raise
                print(f"\n{_HELP}", file=sys.stderr)
                continue
            if line is None or line.strip() == "/exit":
                return self._status
            if line.strip() == "/clear":
                self.messages = list(self._first)
            elif line.strip():
                try:
                    self.say(line)
                except InvalidRequestError as error:
                    if not interactive:
                        raise
                    print(f"fastpaged: error: {' '.join(str(error).split())}", file=sys.stderr)

    def say(self, text: str) -> None:
        """Answers one message, and remembers both; a message that is refused or whose answer fails is forgotten. An
        answer that Ctrl-C stops is remembered as far as it was shown, if anything was."""
        from fastpaged.engine.chat_prompt import chat_prompt

        messages = [*self.messages, {"role": "user", "content": text}]
        answer, failed, stopped = "", False, False
        try:
            stream = self._llm.stream(chat_prompt(self._llm.get_tokenizer(), messages), self._params)
            with contextlib.closing(stream):  # type: ignore[type-var]  # a generator
                for output in stream:
                    new = output.outputs[0].text
                    sys.stdout.write(new)
                    sys.stdout.flush()
                    answer += new
                    failed = output.outputs[0].finish_reason == "error"
        except KeyboardInterrupt:
            stopped = True
            print(" [stopped]", file=sys.stderr)
        sys.stdout.write("\n")
        sys.stdout.flush()
        if failed:
            self._status = EXIT_REQUEST_FAILED
            print("fastpaged: error: the answer failed: the model's logits held a NaN", file=sys.stderr)
        elif answer or not stopped:
            self.messages = [*messages, {"role": "assistant", "content": answer}]


def _read_line(interactive: bool) -> str | None:
    """Without its newline; None at the end of the input."""
    if sys.stdin is None:
        return None
    if interactive and sys.stdout.isatty():
        try:
            return input(PROMPT)
        except EOFError:
            print()
            return None
    if interactive:
        print(PROMPT, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return line.rstrip("\r\n") if line else None
