"""How a weight is called and laid out in a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GgufName:
    """permuted_heads: llama.cpp's converter reorders the rows of a rotated projection, within each of these heads,
    from halves (i beside i + head_dim / 2) to neighbours (2 i beside 2 i + 1). None: rows are as in the original."""

    name: str
    permuted_heads: int | None = None
