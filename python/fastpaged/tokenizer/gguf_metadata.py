"""Reading a tokenizer's keys out of a GGUF file's metadata, each with its type checked."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fastpaged.errors import ModelFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

T = TypeVar("T")

_TEMPLATE = "tokenizer.chat_template"


class TokenizerMetadata:
    """The keys below `tokenizer.`; every complaint names the file and the key. `source` is the file's name."""

    def __init__(self, metadata: Mapping[str, object], source: str) -> None:
        self._metadata = metadata
        self.source = source

    def required(self, key: str, kind: type[T]) -> T:
        """Raises ModelFormatError where the key is absent or its value is of another type."""
        if key not in self._metadata:
            raise self.error(key, f"a value of type {kind.__name__}", "no such key")
        value = self._metadata[key]
        if type(value) is not kind:
            raise self.error(key, f"a value of type {kind.__name__}", f"{type(value).__name__} {value!r:.80}")
        return value

    def optional(self, key: str, kind: type[T], default: T | None) -> T | None:
        """`default` where the key is absent."""
        return self.required(key, kind) if key in self._metadata else default

    def tokens(self) -> list[str]:
        """The vocabulary in the order of its ids, every token once."""
        key = "tokenizer.ggml.tokens"
        tokens = self.strings(key)
        if not tokens:
            raise self.error(key, "at least one token", "none")
        if len(set(tokens)) != len(tokens):
            twice = next(token for token, count in Counter(tokens).items() if count > 1)
            raise self.error(key, "every token once", f"{twice[:80]!r} twice")
        return tokens

    def types(self, num_tokens: int) -> npt.NDArray[np.integer[Any]]:
        """int[num_tokens]: what each token is, a PieceType or another number."""
        return self._one_per_token("tokenizer.ggml.token_type", "iu", "integers", num_tokens)

    def scores(self, num_tokens: int) -> npt.NDArray[np.floating[Any]]:
        """float[num_tokens]"""
        return self._one_per_token("tokenizer.ggml.scores", "f", "floats", num_tokens)

    def token_id(self, name: str, num_tokens: int, default: int | None = None) -> int | None:
        """The id under tokenizer.ggml.<name>_token_id; a default beyond the vocabulary is none."""
        key = f"tokenizer.ggml.{name}_token_id"
        token_id = self.optional(key, int, None)
        if token_id is None:
            return default if default is not None and default < num_tokens else None
        if not 0 <= token_id < num_tokens:
            raise self.error(key, f"a token id below {num_tokens}", token_id)
        return token_id

    def chat_templates(self) -> dict[str, str]:
        """name -> Jinja source; the one without a name is "default"."""
        return {
            key.removeprefix(_TEMPLATE).removeprefix(".") or "default": self.required(key, str)
            for key in self._metadata
            if key == _TEMPLATE or key.startswith(f"{_TEMPLATE}.")
        }

    def has(self, key: str) -> bool:
        """Whether the key is there at all."""
        return key in self._metadata

    def strings(self, key: str) -> list[str]:
        """An array of strings."""
        strings = self.required(key, list)
        if not all(type(item) is str for item in strings):
            raise self.error(key, "an array of strings", "an array of arrays")
        return strings

    def error(self, key: str, expected: str, found: object) -> ModelFormatError:
        """To be raised."""
        return ModelFormatError(f"{self.source}: metadata {key}: expected {expected}, found {found}")

    def _one_per_token(self, key: str, kinds: str, what: str, num_tokens: int) -> npt.NDArray[Any]:
        values: npt.NDArray[Any] = self.required(key, np.ndarray)
        if len(values) != num_tokens or values.dtype.kind not in kinds:
            raise self.error(key, f"{num_tokens} {what}, one a token", f"{len(values)} of {values.dtype}")
        return values
