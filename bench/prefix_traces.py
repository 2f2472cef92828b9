"""Traces of requests whose prompts share beginnings: read from files, or made up.

A prompt is named by the ids of its blocks of 512 tokens: two prompts begin alike for as long as their ids are the same.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

BLOCK_TOKENS = 512  # what an id stands for
GENERATED = "generated_conversations"

_CONVERSATIONS, _MEAN_TURNS, _AT_ONCE = 400, 5.0, 40
_SYSTEM_PROMPTS = (0, 1, 1, 2, 4)  # blocks: each conversation begins with one of these
_MEAN_QUESTION, _MEAN_ANSWER = 600.0, 400.0  # tokens


@dataclass(frozen=True)
class TraceRequest:
    """In order of arrival. block_ids: of the prompt's blocks of BLOCK_TOKENS; the last may be partial, or missing."""

    num_prompt_tokens: int
    num_output_tokens: int
    block_ids: tuple[int, ...]


def read_trace(file: Path) -> list[TraceRequest]:
    """A .csv or .csv.gz with the columns prompt_tokens, output_tokens and prefix_hash_ids. ValueError without these."""
    data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    rows = csv.DictReader(io.StringIO(data.decode()))
    missing = {"prompt_tokens", "output_tokens", "prefix_hash_ids"} - set(rows.fieldnames or ())
    if missing:
        raise ValueError(f"{file} must have the columns {', '.join(sorted(missing))}")
    return [
        TraceRequest(
            int(row["prompt_tokens"]), int(row["output_tokens"]), tuple(map(int, row["prefix_hash_ids"].split()))
        )
        for row in rows
    ]


def generated_trace(seed: int = 0) -> list[TraceRequest]:
    """Conversations whose every prompt holds all that was said before, many of them going on at a time."""
    rng = random.Random(f"{GENERATED}:{seed}")
    fresh = itertools.count()
    systems = [tuple(next(fresh) for _ in range(count)) for count in _SYSTEM_PROMPTS]
    waiting = [_conversation(rng, rng.choice(systems), fresh) for _ in range(_CONVERSATIONS)]
    talking: list[list[TraceRequest]] = []
    requests = []
    while waiting or talking:
        while waiting and len(talking) < _AT_ONCE:
            talking.append(waiting.pop())
        turns = rng.choice(talking)
        requests.append(turns.pop(0))
        if not turns:
            talking.remove(turns)
    return requests


def _conversation(rng: random.Random, system: tuple[int, ...], fresh: Iterable[int]) -> list[TraceRequest]:
    ids, length = list(system), len(system) * BLOCK_TOKENS
    turns = []
    for _ in range(1 + int(rng.expovariate(1 / (_MEAN_TURNS - 1)))):
        length += 1 + int(rng.expovariate(1 / _MEAN_QUESTION))
        answer = 1 + int(rng.expovariate(1 / _MEAN_ANSWER))
        ids += itertools.islice(fresh, length // BLOCK_TOKENS - len(ids))
        turns.append(TraceRequest(length, answer, tuple(ids)))
        length += answer
    return turns


def ideal_hit_rate(trace: Sequence[TraceRequest]) -> float:
    """Share of all blocks that a cache which forgets nothing has, one request after the other."""
    children: dict[tuple[int, int], int] = {}  # (prefix, id) -> the prefix that is longer by it; 0 is the empty one
    num_found = num_blocks = 0
    for request in trace:
        prefix = 0
        for block_id in request.block_ids:
            key = (prefix, block_id)
            num_found += key in children
            prefix = children.setdefault(key, len(children) + 1)
        num_blocks += len(request.block_ids)
    return num_found / num_blocks if num_blocks else 0.0
