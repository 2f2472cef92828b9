"""`fastpaged chat`: a conversation with a model in the terminal, or with lines that are piped in. The model is loaded
here, or behind a server."""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastpaged.cli.conversation import HELP, AnswerFailedError, Conversation
from fastpaged.cli.engine_options import ENGINE_FIELDS, MODEL_HELP, add_engine_options, load_llm
from fastpaged.cli.messages import Messages
from fastpaged.cli.remote_options import add_remote_options, model_name, open_remote, refuse_remote_options
from fastpaged.cli.sampling_options import add_sampling_options, sampling_arguments
from fastpaged.errors import InvalidRequestError
from fastpaged.progress import ProgressBar
from fastpaged.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from collections.abc import Generator

    from fastpaged.cli.conversation import Answers, Message
    from fastpaged.client.remote import Remote
    from fastpaged.llm import LLM
    from fastpaged.sampling_params import SamplingParams


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the subcommand to the parser of `fastpaged`."""
    parser = commands.add_parser(
        "chat",
        help="talk with a model",
        description="Talk with a model that is loaded here (MODEL) or behind a server (--url): a line is a message, "
        f"and the answer streams to stdout. With lines piped in, each is answered in turn. {HELP}.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("model", metavar="MODEL", nargs="?", help=MODEL_HELP)
    parser.add_argument("--system", metavar="TEXT", help="a system message to begin with")
    add_remote_options(parser, required=False)
    add_sampling_options(parser).add_argument(
        "--max-tokens", type=int, metavar="N", help="end an answer after N tokens (default: the rest of the context)"
    )
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    """Loads the model, or finds the server, and talks. Returns the exit status: 1 if an answer failed."""
    _check(args)
    for stream in (sys.stdin, sys.stdout):
        if hasattr(stream, "reconfigure"):  # what is no text in the stream's encoding shall not end the conversation
            stream.reconfigure(errors="replace")
    if "url" in args:
        with open_remote(args) as remote:
            return _talk(_answers_of_server(remote, model_name(args, remote), sampling_arguments(args)), args)
    bar = ProgressBar(sys.stderr) if sys.stderr.isatty() else None
    with Messages(bar), load_llm(args, bar) as llm:
        given = {"max_tokens": None} | sampling_arguments(args)
        params = replace(llm.get_default_sampling_params(), **given, output_kind=RequestOutputKind.DELTA)
        return _talk(_answers_of_model(llm, params), args)


def _check(args: argparse.Namespace) -> None:
    if ("url" in args) == ("model" in args):
        given = "both" if "url" in args else "neither"
        raise InvalidRequestError(f"chat must have a MODEL to load or the --url of a server, got {given}")
    if "url" not in args:
        refuse_remote_options(args)
        return
    for name in ENGINE_FIELDS:
        if name in args:
            option = f"--{name.replace('_', '-')}"
            raise InvalidRequestError(f"{option} must not be given with --url: the server has an engine of its own")


def _talk(answers: Answers, args: argparse.Namespace) -> int:
    conversation = Conversation(answers, vars(args).get("system"))
    return conversation.talk(interactive=sys.stdin is not None and sys.stdin.isatty())


def _answers_of_model(llm: LLM, params: SamplingParams) -> Answers:
    def answers(messages: list[Message]) -> Generator[str, None, None]:
        from fastpaged.engine.chat_prompt import chat_prompt

        stream = llm.stream(chat_prompt(llm.get_tokenizer(), messages), params)
        with contextlib.closing(stream):  # type: ignore[type-var]  # a generator
            for output in stream:
                yield output.outputs[0].text
                if output.outputs[0].finish_reason == "error":
                    raise AnswerFailedError("the answer failed: the model's logits held a NaN")

    return answers


def _answers_of_server(remote: Remote, model: str, sampling: dict[str, Any]) -> Answers:
    def answers(messages: list[Message]) -> Generator[str, None, None]:
        from fastpaged.client.remote import new_text

        body = {"model": model, "messages": messages, **sampling}
        with contextlib.closing(remote.stream("/v1/chat/completions", body)) as events:
            for event in events:
                yield new_text(event)

    return answers
