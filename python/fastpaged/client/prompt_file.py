"""Files of prompts: JSON or JSON lines, of the shapes that people have."""

from __future__ import annotations

import json
import math
import reprlib
from typing import TYPE_CHECKING, Any

from fastpaged.client.bench_request import BenchRequest
from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from pathlib import Path

_LENGTHS = ("out", "output_tokens", "output_len", "max_tokens")
_CHARACTERS_PER_TOKEN = 4  # of English, roughly
_SHAPES = (
    'a text, {"prompt": text or token ids, "out": number of tokens} or {"conversations": [{"value": text}, ...]}, '
    "a question and its answer"
)


def read_prompts(path: Path, output_len: int | None, default_output_len: int) -> list[BenchRequest]:
    """The requests of a file, in its order: a JSON list, or an object a line.

    output_len: tokens of every answer; None: as the file says (of a conversation about as many as its answer has), or
    else default_output_len. Conversations without an answer are passed over. InvalidRequestError names what is wrong
    where.
    """
    try:
        text = path.read_text(encoding="utf-8")
        entries = json.loads(text) if text.lstrip().startswith("[") else _lines(text)
    except OSError as error:
        raise InvalidRequestError(f"--dataset: {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"--dataset: {path} must be JSON, or a JSON value a line: {error}") from None
    requests = []
    for index, entry in enumerate(entries):
        parts = _prompt_and_length(f"--dataset: {path}: request {index}", entry)
        if parts is not None:
            prompt, stated = parts
            length = output_len or stated or default_output_len
            requests.append(BenchRequest(prompt, _num_tokens(prompt), length))
    if not requests:
        raise InvalidRequestError(f"--dataset: {path} holds no request")
    return requests


def _lines(text: str) -> list[Any]:
    entries = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                entries.append(json.loads(line))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
    return entries


def _prompt_and_length(where: str, entry: Any) -> tuple[str | list[int], int | None] | None:
    if isinstance(entry, str) and entry:
        return entry, None
    if isinstance(entry, dict) and isinstance(turns := entry.get("conversations"), list):
        texts = [turn.get("value") if isinstance(turn, dict) else None for turn in turns[:2]]
        if len(texts) < 2 or not all(isinstance(text, str) and text for text in texts):
            return None
        return str(texts[0]), _num_tokens(str(texts[1]))
    prompt = _checked_prompt(entry.get("prompt")) if isinstance(entry, dict) else None
    if prompt is None:
        raise InvalidRequestError(f"{where} must be {_SHAPES}, got {reprlib.repr(entry)}")
    for name in _LENGTHS:
        if (length := entry.get(name)) is not None:
            if type(length) is not int or length < 1:
                raise InvalidRequestError(f"{where}: {name} must be an integer of at least 1, got {length!r:.80}")
            return prompt, length
    return prompt, None


def _checked_prompt(prompt: Any) -> str | list[int] | None:
    if isinstance(prompt, list):
        return prompt if prompt and all(type(token_id) is int for token_id in prompt) else None
    return prompt if isinstance(prompt, str) and prompt else None


def _num_tokens(prompt: str | list[int]) -> int:
    return len(prompt) if isinstance(prompt, list) else math.ceil(len(prompt) / _CHARACTERS_PER_TOKEN)
