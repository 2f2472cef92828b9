"""What a tokenizer is made of, wherever it was read from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tokenizers.processors import TemplateProcessing

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True)
class TokenizerDefinition:
    """A `tokenizers` pipeline and what its file says beside.

    source: the file, for error messages.
    eos_token_ids: every end of sequence that the files name; the chat turn's end comes on top.
    special_tokens: their names in chat templates ("bos_token", "eos_token", ...) and their text.
    chat_templates: name -> Jinja source; "default" is the one used.
    """

    source: str
    backend: tokenizers.Tokenizer
    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    special_tokens: dict[str, str] = field(default_factory=dict)
    chat_templates: dict[str, str] = field(default_factory=dict)


def frame_with(backend: tokenizers.Tokenizer, bos_token_id: int | None, eos_token_id: int | None) -> None:
    """Makes encode(add_special_tokens=True) put the tokens that are given before and after the text."""
    pieces = [("bos", bos_token_id), ("$A", None), ("eos", eos_token_id)]
    backend.post_processor = TemplateProcessing(
        single=[name for name, token_id in pieces if name == "$A" or token_id is not None],
        special_tokens=[(name, token_id) for name, token_id in pieces if token_id is not None],
    )
