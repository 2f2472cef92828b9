"""`fastpaged generate`: one prompt, one answer or several; for people, or as one JSON object for machines."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastpaged.cli.answer_options import add_answer_options, answer_arguments
from fastpaged.cli.engine_options import MODEL_HELP, add_engine_options, load_llm
from fastpaged.cli.logprob_table import HEADER, footer, rows
from fastpaged.cli.messages import Messages
from fastpaged.cli.sampling_options import add_sampling_options, sampling_arguments
from fastpaged.cli.timeline import Timeline
from fastpaged.engine.request_terms import RequestTerms
from fastpaged.errors import InvalidRequestError
from fastpaged.progress import ProgressBar
from fastpaged.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastpaged.engine.admission import Prompt
    from fastpaged.llm import LLM
    from fastpaged.outputs import CompletionOutput, RequestOutput

    # What to write when an answer has grown from one state (None: nothing yet) to another.
    _Show = Callable[[CompletionOutput | None, CompletionOutput], str]

DEFAULT_MAX_TOKENS = 256
EXIT_REQUEST_FAILED = 1


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the subcommand to the parser of `fastpaged`."""
    parser = commands.add_parser(
        "generate",
        help="answer one prompt",
        description="Answer one prompt. The text streams to stdout as it comes, or once all is there if there are "
        "several answers; a line of figures follows on stderr.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--model",
        required=True,
        metavar="MODEL",
        help=MODEL_HELP,
    )
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="text to continue")
    prompt.add_argument("--chat", metavar="TEXT", help="a user's message, put through the model's chat template")
    parser.add_argument(
        "--json",
        action="store_true",
        default=False,
        help="print one JSON object instead of the text; a number that is not finite is null",
    )
    group = add_sampling_options(parser)
    group.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        default=DEFAULT_MAX_TOKENS,
        help="generate at most N tokens (default: %(default)s)",
    )
    group.add_argument(
        "--logprobs", type=int, metavar="K", help="show each token's logprob and those of the K likeliest alternatives"
    )
    group.add_argument(
        "--deadline",
        type=float,
        metavar="S",
        help="end S seconds after loading with what there is",
    )
    add_answer_options(parser)
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    """Loads the model, answers, and prints. Returns the exit status: 1 if the request itself failed."""
    timeline = Timeline()
    timeline.mark("started")
    bar = ProgressBar(sys.stderr) if sys.stderr.isatty() else None
    with Messages(bar) as messages:
        output = _generate(args, timeline, bar)
    if any(answer.finish_reason == "error" for answer in output.outputs):
        why = "see the traceback above" if messages.saw_exception else "the model's logits held a NaN"
        print(f"fastpaged: error: the request failed: {why}", file=sys.stderr)
        return EXIT_REQUEST_FAILED
    return 0


def _generate(args: argparse.Namespace, timeline: Timeline, bar: ProgressBar | None) -> RequestOutput:
    given = vars(args)
    sampling = sampling_arguments(args) | answer_arguments(args)
    SamplingParams(**sampling)  # what is wrong with them is said before the model is loaded
    RequestTerms(deadline=given.get("deadline"))
    if given.get("chat") == "":
        raise InvalidRequestError("--chat must not be empty, got ''")
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal without UTF-8 still gets text
    with load_llm(args, bar) as llm:
        timeline.mark("loaded")
        params = dataclasses.replace(llm.get_default_sampling_params(), **sampling)
        prompt: Prompt = given["prompt"] if "prompt" in given else _chat_prompt(llm, given["chat"])
        show = _nothing if args.json else _text if params.logprobs is None else _table
        output = _answer(llm, prompt, params, timeline, show, given.get("deadline"))
        # Before the engine is closed, which may wait for packed weights to be written.
        if args.json:
            print(_as_json(output), flush=True)
        else:
            print(_figures(output, params, timeline), file=sys.stderr)
        return output


def _as_json(output: RequestOutput) -> str:
    """In ASCII, for stdout may be of any encoding. JSON has no infinity and no NaN: such a number becomes null."""
    return json.dumps(_plain(output), allow_nan=False)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _chat_prompt(llm: LLM, message: str) -> Prompt:
    from fastpaged.engine.chat_prompt import chat_prompt

    return chat_prompt(llm.get_tokenizer(), [{"role": "user", "content": message}])


def _answer(
    llm: LLM, prompt: Prompt, params: SamplingParams, timeline: Timeline, show: _Show, deadline: float | None
) -> RequestOutput:
    before: CompletionOutput | None = None
    for output in llm.stream(prompt, params, deadline=deadline):
        timeline.mark("first token")
        if params.n == 1:
            sys.stdout.write(show(before, output.outputs[0]))
            sys.stdout.flush()
            before = output.outputs[0]
    timeline.mark("done")
    if params.n > 1 and show is not _nothing:
        for answer in output.outputs:
            print(_heading(answer, len(output.outputs)))
            print(show(None, answer), end="", flush=True)
    return output


def _heading(answer: CompletionOutput, count: int) -> str:
    how = f"seed {answer.seed}" if answer.score is None else f"score {answer.score:.4f}"
    return f"--- answer {answer.index + 1} of {count} ({answer.finish_reason}, {how})"


def _nothing(before: CompletionOutput | None, now: CompletionOutput) -> str:
    return ""


def _text(before: CompletionOutput | None, now: CompletionOutput) -> str:
    new = now.text[len(before.text) if before else 0 :]
    return new if now.finish_reason is None else new + "\n"


def _table(before: CompletionOutput | None, now: CompletionOutput) -> str:
    lines = [] if before else [HEADER]
    lines += rows(now, len(before.token_ids) if before else 0)
    if now.finish_reason is not None:
        lines.append(footer(now))
    return "".join(line + "\n" for line in lines)


def _reason(answer: CompletionOutput) -> str:
    timed_out = answer.finish_reason == "abort" and answer.stop_reason is not None
    return str(answer.stop_reason if timed_out else answer.finish_reason)


def _figures(output: RequestOutput, params: SamplingParams, timeline: Timeline) -> str:
    """One line: what was done, how fast, and where the time from the start of the process went."""
    metrics, moments = output.metrics, timeline.moments
    num_tokens = metrics.num_generation_tokens
    reasons = dict.fromkeys(_reason(answer) for answer in output.outputs)
    num_shown, of_whom = len(output.outputs), ""
    if num_shown < params.num_branches:
        of_whom = f" of {params.num_branches} {'beams' if params.use_beam_search else 'answers'}, {num_shown} shown"
    parts = [f"{num_tokens} tokens{of_whom} ({', '.join(reasons)})"]
    if metrics.first_token_ts is not None and metrics.last_token_ts is not None and num_tokens > 1:
        rate = (num_tokens - 1) / max(metrics.last_token_ts - metrics.first_token_ts, 1e-9)
        parts.append(f"{rate:.1f} tok/s")
    if metrics.first_token_latency is not None:
        parts.append(f"TTFT {metrics.first_token_latency:.3f} s")
    line = " > ".join(f"{moment} {seconds:.2f} s" for moment, seconds in moments.items())
    return f"[{', '.join(parts)}; since process start: {line}]"
