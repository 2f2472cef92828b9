"""`fastpaged bench serve`: sends a load to a server and says how it fared."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastpaged.cli.bench_output import check_writable
from fastpaged.cli.bench_serve_options import Options, add_options, options_of
from fastpaged.cli.remote_options import api_key, model_name, open_remote
from fastpaged.client import arrivals
from fastpaged.client.address import Address
from fastpaged.client.endpoint import ENDPOINTS
from fastpaged.progress import ProgressBar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastpaged.client.bench_request import BenchRequest
    from fastpaged.client.load import Run

EXIT_REQUEST_FAILED = 1
_WARM_UP_TOKENS = 8  # of each answer


def add_parser(kinds: argparse._SubParsersAction[Any]) -> None:
    """Adds the measurement to the parser of `fastpaged bench`."""
    parser = kinds.add_parser(
        "serve",
        help="latency and throughput of a server under load",
        description="Send requests to an OpenAI-compatible server, ours or another, as they would come from many "
        "clients, and say how long they took.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Measures at each rate in turn. Exit status 1 if a request failed."""
    from fastpaged.client import latency_plot, sender
    from fastpaged.client.figure_rows import figure_rows

    options = options_of(args)
    sender.check_installed()
    if options.plot is not None:
        latency_plot.check_installed()
    for option, path in (("--save-result", options.save_result), ("--plot", options.plot)):
        if path is not None:
            check_writable(path, option)
    with open_remote(args) as remote:
        name = model_name(args, remote)
        card = next((card for card in remote.models() if card["id"] == name), {})
        options = replace(options, model=name, max_model_len=options.max_model_len or card.get("max_model_len"))
    loads = options.loads()
    results = []
    for index, (rate, requests) in enumerate(zip(options.rates, loads, strict=True)):
        measured = _measure(args, options, rate, requests, is_first=index == 0)
        results.append(_result(options, rate, requests, measured))
        if not all(sample.is_counted_by_server for sample in measured.samples if sample.error is None):
            print(
                "fastpaged: warning: the server counts no tokens: events that bring some are counted", file=sys.stderr
            )
        print("\n".join(figure_rows(results[-1], options.shown_metrics, options.shown_percentiles)), flush=True)
    if options.save_result is not None:
        saved = results[0] if len(results) == 1 else results
        options.save_result.write_text(json.dumps(saved, indent=2) + "\n", encoding="utf-8")
    if options.plot is not None:
        latency_plot.save_plot(results, options.subtitle, options.plot)
    return EXIT_REQUEST_FAILED if any(result["failed"] for result in results) else 0


def _measure(
    args: argparse.Namespace, options: Options, rate: float | None, requests: Sequence[BenchRequest], *, is_first: bool
) -> Run:
    from fastpaged.client.load import run_load
    from fastpaged.client.sender import Sender

    bar = ProgressBar(sys.stderr) if sys.stderr.isatty() else None
    phase = "requests" if len(options.rates) == 1 else f"requests at {rate}/s"
    endpoint = ENDPOINTS[options.endpoint]
    for request in requests:
        endpoint.body(request)  # what this route cannot say is said before the load, not in it

    def on_done(done: int) -> None:
        if bar is not None:
            bar(phase, done, len(requests))

    async def load() -> Run:
        async with Sender(Address.of(args.url), endpoint, options.common_body(), api_key(args)) as sender:
            if is_first and options.warmup:
                warm_up = options.warm_up(requests, _WARM_UP_TOKENS)
                await run_load(warm_up, [0.0] * len(warm_up), sender.send, max_concurrency=options.max_concurrency)
            return await run_load(
                requests,
                _arrivals(options, rate, requests),
                sender.send,
                max_concurrency=options.max_concurrency,
                on_done=on_done,
            )

    try:
        return asyncio.run(load())
    finally:
        if bar is not None:
            bar.clear()


def _arrivals(options: Options, rate: float | None, requests: Sequence[BenchRequest]) -> list[float]:
    if rate is not None and math.isinf(rate):
        return [0.0] * len(requests)
    if rate is None or requests[0].arrival_s is not None:
        return arrivals.trace_arrivals(requests, rate)
    return arrivals.random_arrivals(len(requests), rate, options.burstiness, options.seed)


def _result(options: Options, rate: float | None, requests: Sequence[BenchRequest], run: Run) -> dict[str, Any]:
    from fastpaged.client.figures import details, figures

    asked = arrivals.mean_rate(_arrivals(options, rate, requests))
    result = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": ENDPOINTS[options.endpoint].kind,
        "backend": ENDPOINTS[options.endpoint].kind,
        "label": options.label,
        "model_id": options.model,
        "tokenizer_id": None,
        "dataset": options.dataset,
        "num_prompts": len(requests),
        "request_rate": (asked if rate is None else rate) if not math.isinf(asked) else "inf",
        "burstiness": options.burstiness,
        "max_concurrency": options.max_concurrency,
        **figures(run, metrics=options.metrics, percentiles=options.percentiles, goodput=options.goodput),
    }
    return result | details(run) if options.save_detailed else result
