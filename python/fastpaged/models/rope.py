"""How positions turn queries and keys, as a model's configuration says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastpaged.config.keys import Keys
    from fastpaged.models.sizes import Sizes


@dataclass(frozen=True)
class Rope:
    """theta: the base of the frequencies. rotary_dim: how many elements of each head are turned, an even number."""

    theta: float
    rotary_dim: int


def rope_from_hf(keys: Keys, sizes: Sizes, *, default_theta: float = 10000.0) -> Rope:
    """From config.json: rope_theta and rope_scaling, or rope_parameters, which says both."""
    theta = keys.number("rope_theta", default_theta)
    for key in ("rope_scaling", "rope_parameters"):
        rope = keys.within(key)
        if rope.values.get("rope_type", rope.values.get("type", "default")) != "default":
            raise keys.error(key, "null or of rope_type 'default' (scaled positions are not supported yet)")
        theta = rope.number("rope_theta", theta)
    return Rope(theta, even(keys, "head_dim", sizes["head_dim"]))


def rope_from_gguf(keys: Keys, sizes: Sizes) -> Rope:
    """From a GGUF file's metadata."""
    name = keys.string("general.architecture")
    keys.only(f"{name}.rope.scaling.type", None, "none", why="scaled positions are not supported yet")
    key = f"{name}.rope.dimension_count"
    dim = keys.integer(key, sizes["head_dim"], limits=(2, sizes["head_dim"]))
    return Rope(keys.number(f"{name}.rope.freq_base", 10000.0), even(keys, key, dim))


def even(keys: Keys, key: str, rotary_dim: int) -> int:
    """rotary_dim, which `key` says: elements are turned in pairs."""
    if rotary_dim % 2:
        raise keys.error(key, f"such that the rotated part of a head is even, which {rotary_dim} is not")
    return rotary_dim
