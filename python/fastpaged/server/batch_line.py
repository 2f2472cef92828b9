"""BatchLine: one request of a file of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from pathlib import Path

ROUTES = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")


@dataclass(frozen=True)
class BatchLine:
    """body: of the request, in JSON. problem: why it cannot even be asked; None: it can."""

    custom_id: str
    url: str = ""
    body: bytes = b""
    problem: str | None = None


def read_lines(path: Path) -> list[BatchLine]:
    """All of a file. A line without a custom_id is called by its number, which then is no other line's custom_id.

    Raises InvalidRequestError for a file that cannot be read, and for a custom_id that is there twice.
    """
    try:
        # By \n alone: JSON's strings may hold what else ends a line of text.
        rows = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise InvalidRequestError(f"the input must be a file of lines of JSON, got {str(path)!r}: {error}") from error
    found = {number: _line(row) for number, row in enumerate(rows, 1) if row.strip()}
    numbers: dict[str, int] = {}
    for number, line in found.items():
        if not line.custom_id:
            continue
        if line.custom_id in numbers:
            raise InvalidRequestError(
                f"custom_id must be another in every line, got {line.custom_id!r} in lines {numbers[line.custom_id]} "
                f"and {number} of {str(path)!r}"
            )
        numbers[line.custom_id] = number
    return [line if line.custom_id else _named(line, number, numbers) for number, line in found.items()]


def _named(line: BatchLine, number: int, taken: dict[str, int]) -> BatchLine:
    name = f"line-{number}"
    while name in taken:
        name += "'"
    return BatchLine(name, problem=line.problem)


def _line(row: bytes) -> BatchLine:
    """With an empty custom_id if it has none."""
    try:
        found = json.loads(row.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return BatchLine("", problem=f"the line must be JSON: {error}")
    if not isinstance(found, dict) or not isinstance(found.get("custom_id"), str) or not found["custom_id"]:
        return BatchLine("", problem="the line must be an object with a custom_id, a string")
    name, method, url, body = found["custom_id"], found.get("method", "POST"), found.get("url"), found.get("body")
    if method != "POST":
        return BatchLine(name, problem=f"method must be 'POST', got {method!r:.80}")
    if url not in ROUTES:
        return BatchLine(name, problem=f"url must be one of {', '.join(ROUTES)}, got {url!r:.80}")
    if not isinstance(body, dict) or body.get("stream"):
        return BatchLine(name, problem="body must be an object, without stream")
    # As it came, for the server to judge: NaN and halves of characters included, which others' JSON does not write.
    return BatchLine(name, url, json.dumps(body).encode("ascii"))
