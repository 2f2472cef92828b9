"""Requests that ask for more than there is: lengths as people's are, read from files or made up, arriving in order."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_MODEL_LEN = 2048

_FILES = {"sharegpt": "sharegpt_paper_opt.csv.gz", "alpaca": "alpaca_calibrated.csv.gz"}
_SAMPLES = (1, 2, 4, 6)
_SYSTEM_PROMPTS = (160, 320, 320, 640)  # tokens
_FIRST_OWN_TOKEN = 1 << 20  # below it are those of system prompts

Lengths = tuple[int, int]  # of a prompt and of its answers, in tokens


@dataclass(frozen=True)
class LoadRequest:
    """All its answers are num_output_tokens long."""

    prompt_token_ids: list[int]
    num_output_tokens: int
    num_samples: int = 1
    num_shared_tokens: int = 0  # with which the prompt begins, as others do

    @property
    def num_tokens(self) -> int:
        """Of K and V at its end that are its own, if its samples share the prompt."""
        return len(self.prompt_token_ids) - self.num_shared_tokens + self.num_samples * self.num_output_tokens


@dataclass(frozen=True)
class Load:
    """Requests in order of arrival, and whether they are served with a prefix cache."""

    name: str
    requests: Sequence[LoadRequest]
    prefix_caching: bool = False


def parts(load: Load, count: int) -> list[Load]:
    """The load cut into so many, to be served one by one: what happens to one request changes what happens to all after
    it, so that a single run says little."""
    size = -(-len(load.requests) // count)
    cuts = (load.requests[begin : begin + size] for begin in range(0, len(load.requests), size))
    return [Load(load.name, requests, load.prefix_caching) for requests in cuts]


def made_up_lengths(kind: str, count: int, seed: int = 0) -> list[Lengths]:
    """Parametric: means and spread as published of ShareGPT's conversations ("sharegpt") and Alpaca's instructions."""
    rng = random.Random(f"{kind}:{seed}")
    draw = {"sharegpt": _sharegpt, "alpaca": _alpaca}[kind]
    fitting = (lengths for lengths in iter(lambda: draw(rng), None) if sum(lengths) < MAX_MODEL_LEN)
    return list(itertools.islice(fitting, count))


def _sharegpt(rng: random.Random) -> Lengths:
    prompt = rng.lognormvariate(3.05, 0.85) if rng.random() < 0.72 else rng.lognormvariate(5.95, 0.95)
    return 1 + int(prompt), 1 + int(rng.gammavariate(1.318, 262.3))


def _alpaca(rng: random.Random) -> Lengths:
    return 1 + int(rng.lognormvariate(2.7, 0.7)), 1 + int(rng.lognormvariate(3.6, 0.95))


def read_lengths(file: Path, count: int) -> list[Lengths]:
    """Of a .csv.gz with the columns prompt_tokens and output_tokens, the first that fit."""
    rows = csv.DictReader(io.StringIO(gzip.decompress(file.read_bytes()).decode()))
    lengths = ((int(row["prompt_tokens"]), int(row["output_tokens"])) for row in rows)
    fitting = (pair for pair in lengths if min(pair) > 0 and sum(pair) < MAX_MODEL_LEN)
    return list(itertools.islice(fitting, count))


def loads(folder: Path | None, count: int) -> list[Load]:
    """ShareGPT's lengths, Alpaca's, Alpaca's with several samples; and with a prefix cache Alpaca's behind system
    prompts that are shared, and ShareGPT's, which share nothing but may be found again after a preemption.

    folder: where the files of lengths lie; None makes them up.
    """

    def lengths(kind: str) -> list[Lengths]:
        return made_up_lengths(kind, count) if folder is None else read_lengths(folder / _FILES[kind], count)

    sharegpt, alpaca = lengths("sharegpt"), lengths("alpaca")
    rng = random.Random("samples and system prompts")
    samples = [rng.choice(_SAMPLES) for _ in alpaca]
    systems = [list(range(1 + 1000 * i, 1 + 1000 * i + size)) for i, size in enumerate(_SYSTEM_PROMPTS)]
    chosen = [rng.choice(systems) for _ in alpaca]
    return [
        Load("sharegpt", _requests(sharegpt)),
        Load("alpaca", _requests(alpaca)),
        Load("samples", _requests(alpaca, num_samples=samples.__getitem__)),
        Load("shared", _requests(alpaca, prefix=chosen.__getitem__), prefix_caching=True),
        Load("cached", _requests(sharegpt), prefix_caching=True),
    ]


def _requests(
    lengths: Sequence[Lengths],
    num_samples: Callable[[int], int] = lambda _: 1,
    prefix: Callable[[int], list[int]] = lambda _: [],
) -> list[LoadRequest]:
    return [
        LoadRequest([*prefix(i), *([_FIRST_OWN_TOKEN + i] * num_prompt)], num_output, num_samples(i), len(prefix(i)))
        for i, (num_prompt, num_output) in enumerate(lengths)
    ]
