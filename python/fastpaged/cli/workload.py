"""Workloads: requests to replay, from a JSON file."""

from __future__ import annotations

import json
import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class WorkloadRequest:
    """A prompt as token ids, and how many tokens to generate after it."""

    prompt: list[int]
    num_output_tokens: int


def read_workload(path: Path) -> list[WorkloadRequest]:
    """path: JSON, [{"prompt": [token ids], "out": n}, ...]. Raises InvalidRequestError naming what is wrong where."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequestError(f"--workload: {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"--workload: {path} must be JSON in UTF-8: {error}") from None
    if not isinstance(entries, list) or not entries:
        raise InvalidRequestError(
            f"--workload: {path} must be a non-empty list of requests, got {reprlib.repr(entries)}"
        )
    return [_request(f"--workload: {path}: request {index}", entry) for index, entry in enumerate(entries)]


def _request(where: str, entry: object) -> WorkloadRequest:
    if not isinstance(entry, dict) or set(entry) != {"prompt", "out"}:
        raise InvalidRequestError(
            f'{where} must be {{"prompt": [token ids], "out": number of tokens}}, got {reprlib.repr(entry)}'
        )
    prompt, out = entry["prompt"], entry["out"]
    if not isinstance(prompt, list) or not prompt or not all(type(token_id) is int for token_id in prompt):
        raise InvalidRequestError(f"{where}: prompt must be a non-empty list of token ids, got {reprlib.repr(prompt)}")
    if type(out) is not int or out < 1:
        raise InvalidRequestError(f"{where}: out must be an integer of at least 1, got {reprlib.repr(out)}")
    return WorkloadRequest(prompt, out)
