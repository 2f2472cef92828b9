"""What stands in a tokenizer's place where none is wanted: token ids in, token ids out."""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fastpaged.errors import InvalidRequestError, ModelFormatError
from fastpaged.formats import GgufFile, find_gguf
from fastpaged.tokenizer.json_file import read_json_object

if TYPE_CHECKING:
    from collections.abc import Sequence


class NoTokenizer:
    """Knows which tokens end an answer, as the model's files say, and refuses everything that needs text."""

    bos_token_id = None

    def __init__(self, model: str) -> None:
        """model: a .gguf file, or a folder with config.json or with one .gguf file. Raises ModelFormatError."""
        self.eos_token_ids = _end_token_ids(Path(model))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> NoReturn:
        """Raises InvalidRequestError, like every method."""
        raise _refusal("prompts must be token ids, and there are no bad_words")

    def text_stream(self, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> NoReturn:
        """Raises InvalidRequestError."""
        raise _refusal("detokenize must be False")

    def token_text(self, token_id: int) -> NoReturn:
        """Raises InvalidRequestError."""
        raise _refusal("detokenize must be False")


def _refusal(what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{what} with skip_tokenizer_init=True, for there is no tokenizer")


def _end_token_ids(model: Path) -> frozenset[int]:
    gguf = find_gguf(model)
    if gguf is not None and not (model / "config.json").is_file():
        with GgufFile.open(gguf) as file:
            values: dict[str, object] = {str(gguf): file.metadata.get("tokenizer.ggml.eos_token_id")}
    else:
        files = (model / "config.json", model / "generation_config.json")
        values = {str(file): read_json_object(file).get("eos_token_id") for file in files}
    ids: set[int] = set()
    for source, value in values.items():
        for token_id in value if isinstance(value, list) else [] if value is None else [value]:
            if type(token_id) is not int:
                found = reprlib.repr(value)
                raise ModelFormatError(f"{source}: eos_token_id: expected a token id or a list of them, found {found}")
            if token_id >= 0:
                ids.add(token_id)
    return frozenset(ids)
