"""Trace files: when requests came and how long they were, without what they said."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from typing import TYPE_CHECKING

from fastpaged.client.bench_request import BenchRequest
from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from pathlib import Path

    from fastpaged.client.random_prompts import RandomPrompts

_COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")


def read_trace(path: Path, prompts: RandomPrompts, max_model_len: int | None, count: int | None) -> list[BenchRequest]:
    """The first `count` rows (None: all) that fit into max_model_len, in order of arrival, with random prompts.

    path: CSV, or that in gzip, with the columns arrival_s, prompt_tokens and output_tokens, and perhaps
    prefix_hash_ids: of each block of 512 tokens of the prompt an id, so that prompts begin alike where these do.
    """
    requests: list[BenchRequest] = []
    for number, row in enumerate(_rows(path), 2):
        arrival, num_prompt, num_output = _numbers(f"--dataset: {path}: line {number}", row)
        if max_model_len is not None and num_prompt + num_output > max_model_len:
            continue
        if requests and arrival < (requests[-1].arrival_s or 0.0):
            raise InvalidRequestError(f"--dataset: {path}: line {number}: arrival_s must not go back, got {arrival}")
        blocks = (row.get("prefix_hash_ids") or "").split()
        prompt = prompts.prompt_of_blocks(number, blocks, num_prompt)
        requests.append(BenchRequest(prompt, num_prompt, num_output, arrival))
        if len(requests) == count:
            break
    return requests


def _rows(path: Path) -> csv.DictReader[str]:
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode("utf-8")
    except OSError as error:
        raise InvalidRequestError(f"--dataset: {path} cannot be read: {error.strerror or error}") from None
    except (EOFError, ValueError, zlib.error) as error:
        raise InvalidRequestError(f"--dataset: {path} must be CSV, or that in gzip: {error}") from None
    rows = csv.DictReader(io.StringIO(text))
    missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise InvalidRequestError(f"--dataset: {path} must have the columns {', '.join(_COLUMNS)}, lacks {missing}")
    return rows


def _numbers(where: str, row: dict[str, str]) -> tuple[float, int, int]:
    try:
        arrival, num_prompt, num_output = (float(row[name]) for name in _COLUMNS)
        valid = math.isfinite(arrival) and num_prompt >= 1 and num_output >= 1
    except (TypeError, ValueError):
        valid = False
    if not valid:
        shown = {name: row[name] for name in _COLUMNS}
        raise InvalidRequestError(f"{where} must have a time in seconds and numbers of at least 1, got {shown}")
    return arrival, int(num_prompt), int(num_output)
