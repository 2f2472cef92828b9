"""The options of `fastpaged bench serve`, and the requests that they describe."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastpaged.cli.remote_options import add_remote_options
from fastpaged.client.bench_request import BenchRequest, fitting
from fastpaged.client.endpoint import ENDPOINTS
from fastpaged.client.random_prompts import RandomPrompts, random_requests
from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

RANDOM, TRACE = "random", "trace:"
DEFAULT_NUM_PROMPTS = 100  # of random ones
DEFAULT_OUTPUT_LEN = 128  # where neither options nor file say
_SHOWN_METRICS, _SHOWN_PERCENTILES = ("ttft", "tpot", "itl"), (99.0,)


def add_options(parser: argparse.ArgumentParser) -> None:
    """All of them. REQUIRES: the parser leaves out what is absent (argument_default=argparse.SUPPRESS)."""
    server = add_remote_options(parser, required=True)
    server.add_argument("--endpoint", choices=list(ENDPOINTS), help="the route (default: completions)")
    server.add_argument("--extra-body", metavar="JSON", help="more fields of every request")
    what = parser.add_argument_group("requests")
    what.add_argument(
        "--dataset",
        metavar="FILE",
        help="JSON or JSON lines of prompts, with lengths if they have any, or of conversations; trace:FILE: CSV with "
        "arrival_s, prompt_tokens, output_tokens; random: random tokens (the default; a chat gets words)",
    )
    what.add_argument("--num-prompts", type=int, metavar="N", help="requests at each rate (default: all, or 100)")
    what.add_argument("--output-len", type=int, metavar="N", help="tokens of every answer, whatever a file says")
    what.add_argument("--random-input-len", type=int, metavar="N", help="tokens of a prompt (default: 512)")
    what.add_argument("--random-output-len", type=int, metavar="N", help="tokens of an answer (default: 128)")
    what.add_argument("--range-ratio", type=float, metavar="X", help="lengths vary by this part (default: 0)")
    what.add_argument(
        "--random-vocab-size", type=int, metavar="N", help="random tokens are of so many (default: 32000)"
    )
    what.add_argument(
        "--max-model-len", type=int, metavar="N", help="leave out what is longer in all (default: the server's limit)"
    )
    what.add_argument("--temperature", type=float, metavar="X", help="default: 0, the most likely tokens")
    what.add_argument("--ignore-eos", action="store_true", help="answers are as long as asked for")
    load = parser.add_argument_group("load")
    load.add_argument(
        "--request-rate",
        metavar="R[,R...]",
        help="requests per second, one run for each; inf: all at once (default: inf, or a trace's own times)",
    )
    load.add_argument("--burstiness", type=float, metavar="X", help="1: Poisson; less is burstier (default: 1)")
    load.add_argument("--max-concurrency", type=int, metavar="N", help="requests out at a time (default: no limit)")
    load.add_argument("--warmup", type=int, metavar="N", help="short requests before the first run (default: 0)")
    load.add_argument("--seed", type=int, metavar="S", help="of all that is random (default: 0)")
    _add_output_options(parser.add_argument_group("figures"))


def _add_output_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--percentile-metrics", metavar="NAMES", help="of ttft,tpot,itl,e2el (default: the first three)")
    group.add_argument("--metric-percentiles", metavar="P[,P...]", help="default: 99")
    group.add_argument(
        "--goodput", nargs="+", metavar="NAME:MS", help="also count requests with ttft, tpot, e2el within these times"
    )
    group.add_argument("--save-result", type=Path, metavar="FILE", help="figures as JSON; a list of several runs'")
    group.add_argument("--save-detailed", action="store_true", help="with each request's times and text")
    group.add_argument("--plot", type=Path, metavar="FILE", help="latency against rate as a PNG")
    group.add_argument("--label", metavar="TEXT", help="a name for the result")


@dataclass(frozen=True)
class Options:
    """Each as the option of its name says. rates: None is a trace's own times. metrics, percentiles: those that are
    computed; shown_*: those that were asked for. model, max_model_len: what the server says unless they were given."""

    rates: Sequence[float | None] = (math.inf,)
    dataset: str = RANDOM
    num_prompts: int | None = None
    output_len: int | None = None
    random_input_len: int = 512
    random_output_len: int = 128
    range_ratio: float = 0.0
    random_vocab_size: int = 32000
    max_model_len: int | None = None
    endpoint: str = "completions"
    extra_body: dict[str, Any] | None = None
    temperature: float = 0.0
    ignore_eos: bool = False
    burstiness: float = 1.0
    max_concurrency: int | None = None
    warmup: int = 0
    seed: int = 0
    shown_metrics: Sequence[str] = _SHOWN_METRICS
    shown_percentiles: Sequence[float] = _SHOWN_PERCENTILES
    goodput: dict[str, float] | None = None
    save_result: Path | None = None
    save_detailed: bool = False
    plot: Path | None = None
    label: str | None = None
    model: str = ""

    def __post_init__(self) -> None:
        for name, least in (("num_prompts", 1), ("output_len", 1), ("max_concurrency", 1), ("warmup", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidRequestError(f"--{name.replace('_', '-')} must be at least {least}, got {value}")
        if not 0 < self.burstiness < math.inf:
            raise InvalidRequestError(f"--burstiness must be above 0 and finite, got {self.burstiness}")

    @property
    def metrics(self) -> list[str]:
        """With those that the plot needs."""
        from fastpaged.client import latency_plot

        return list(dict.fromkeys([*self.shown_metrics, *(latency_plot.METRICS if self.plot else ())]))

    @property
    def percentiles(self) -> list[float]:
        """With the one that the plot needs."""
        from fastpaged.client import latency_plot

        return list(dict.fromkeys([*self.shown_percentiles, *((float(latency_plot.PERCENTILE),) if self.plot else ())]))

    @property
    def subtitle(self) -> str:
        """What was measured."""
        return f"{self.label or Path(self.model).name}, {Path(self.dataset).name}"

    def common_body(self) -> dict[str, Any]:
        """Fields of every request."""
        body: dict[str, Any] = {"model": self.model, "temperature": self.temperature}
        if self.ignore_eos:
            body["ignore_eos"] = True
        return body | (self.extra_body or {})

    def loads(self) -> list[list[BenchRequest]]:
        """The requests of each rate. No prompt comes twice, for a server might remember it from the rate before, unless
        a file has too few for that and the same come at every rate."""
        per_rate = self.num_prompts or (DEFAULT_NUM_PROMPTS if self.dataset == RANDOM else None)
        wanted = None if per_rate is None else per_rate * len(self.rates)
        requests = self._requests(wanted)
        if not requests:
            raise InvalidRequestError(
                f"--dataset: {self.dataset} has no request within the server's limit of {self.max_model_len} tokens"
            )
        if per_rate is None:
            return [requests] * len(self.rates)
        if len(requests) < per_rate:
            raise InvalidRequestError(f"--num-prompts must be at most {len(requests)} for this dataset, got {per_rate}")
        if len(requests) < per_rate * len(self.rates):
            return [requests[:per_rate]] * len(self.rates)
        return [requests[index * per_rate : (index + 1) * per_rate] for index in range(len(self.rates))]

    def warm_up(self, requests: Sequence[BenchRequest], num_tokens: int) -> list[BenchRequest]:
        """As long as the first requests, with other prompts and short answers."""
        prompts = self._prompts()
        firsts = [requests[index % len(requests)] for index in range(self.warmup)]
        return [
            BenchRequest(
                prompts.prompt(f"warm-up {index}", first.num_prompt_tokens),
                first.num_prompt_tokens,
                min(num_tokens, first.num_output_tokens),
            )
            for index, first in enumerate(firsts)
        ]

    def _prompts(self) -> RandomPrompts:
        return RandomPrompts(self.seed, self.random_vocab_size, as_text=ENDPOINTS[self.endpoint].is_chat)

    def _requests(self, wanted: int | None) -> list[BenchRequest]:
        from fastpaged.client.prompt_file import read_prompts
        from fastpaged.client.trace_file import read_trace

        if self.dataset == RANDOM:
            lengths = self.random_input_len, self.output_len or self.random_output_len
            return random_requests(self._prompts(), self.seed, wanted or 0, *lengths, self.range_ratio)
        if self.dataset.startswith(TRACE):
            path = Path(self.dataset.removeprefix(TRACE))
            return read_trace(path, self._prompts(), self.max_model_len, wanted)
        return fitting(read_prompts(Path(self.dataset), self.output_len, DEFAULT_OUTPUT_LEN), self.max_model_len)


def options_of(args: argparse.Namespace) -> Options:
    """InvalidRequestError for what cannot be."""
    from fastpaged.client.figures import METRICS, parse_goodput

    given = vars(args)
    taken = {
        field.name: given[field.name] for field in fields(Options) if field.name in given and field.name != "model"
    }
    if "extra_body" in given:
        taken["extra_body"] = _json_object("--extra-body", given["extra_body"])
    if "goodput" in given:
        taken["goodput"] = parse_goodput(given["goodput"])
    if "percentile_metrics" in given:
        names = given["percentile_metrics"].split(",")
        if not set(names) <= set(METRICS):
            raise InvalidRequestError(f"--percentile-metrics must be of {', '.join(METRICS)}, got {names}")
        taken["shown_metrics"] = names
    if "metric_percentiles" in given:
        taken["shown_percentiles"] = _numbers("--metric-percentiles", given["metric_percentiles"], 0.0, 100.0)
    if "request_rate" in given:
        taken["rates"] = _numbers("--request-rate", given["request_rate"], 0.0, math.inf)
    elif given.get("dataset", RANDOM).startswith(TRACE):
        taken["rates"] = (None,)
    return Options(**taken)


def _numbers(option: str, text: str, above: float, most: float) -> list[float]:
    numbers = []
    for part in text.split(","):
        try:
            number = float(part)
        except ValueError:
            number = math.nan
        if not above < number <= most:
            raise InvalidRequestError(f"{option} must be numbers above {above:g} and up to {most:g}, got {part!r}")
        numbers.append(number)
    return numbers


def _json_object(option: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{option} must be a JSON object, got {text!r:.80}")
    return value
