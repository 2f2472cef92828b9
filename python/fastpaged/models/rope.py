"""How positions turn queries and keys, as a model's configuration says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpaged.config.model_config import POSITION_LIMITS
from fastpaged.models.rope_scaling import (
    FactorScaling,
    LinearScaling,
    Llama3Scaling,
    Scaling,
    YarnScaling,
    longrope_attention_factor,
    yarn_attention_factor,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastpaged.config.keys import Keys
    from fastpaged.models.sizes import Sizes

_HF_TYPES = ("default", "linear", "llama3", "yarn", "longrope")
_GGUF_TYPES = ("none", "linear", "yarn", "longrope")
_PHI_POSITIONS = 4096
_LLAMA3_FACTORS = "rope_freqs.weight"
_LONG_FACTORS, _SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"


@dataclass(frozen=True)
class Rope:
    """theta: the base of the frequencies. rotary_dim: how many elements of each head are turned, an even number."""

    theta: float
    rotary_dim: int
    scaling: Scaling | None = None

    @property
    def bytes_per_position(self) -> int:
        """Of its table, in float32."""
        return 4 * self.rotary_dim

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of the tensors that its table is made of."""
        return self.scaling.tensors(self) if isinstance(self.scaling, FactorScaling) else {}


def rope_from_hf(
    keys: Keys, sizes: Sizes, *, theta: float = 10000.0, share: float | None = None, phi_names: bool = False
) -> Rope:
    """From config.json: rope_theta and rope_scaling, or rope_parameters, which says both.

    theta: the family's, where the file says none. share: of a head that is turned, where the file does not say; None:
    the family turns whole heads, and anything else is refused. phi_names: "su" and "yarn" are longrope, and the
    original context is 4096 where the file does not say it beside the rotation's settings.
    """
    place = "rope_scaling" if keys.within("rope_scaling").values else "rope_parameters"
    rope = keys.within(place)
    for name, value in rope.values.items():
        if isinstance(value, Mapping):
            raise rope.error(name, "no object: all layers are rotated alike in this family")
    return hf_rope(rope, keys, sizes, theta=keys.number("rope_theta", theta), share=share, phi_names=phi_names)


def hf_rope(
    rope: Keys, keys: Keys, sizes: Sizes, *, theta: float, share: float | None = None, phi_names: bool = False
) -> Rope:
    """rope: what config.json says of the rotation of all layers, or of one kind of them. keys: of config.json."""
    theta = rope.number("rope_theta", theta)
    types = (*_HF_TYPES, "su") if phi_names else _HF_TYPES
    key = "rope_type" if "rope_type" in rope else "type"
    kind = rope.string(key, "default", allowed=types)
    whole = sizes["head_dim"]
    for place in (keys, rope):
        if share is None and place.number("partial_rotary_factor", 1.0) != 1.0:
            raise place.error("partial_rotary_factor", "1.0 in this family, or missing")
    rotary_dim = whole
    if share is not None:
        share = rope.number("partial_rotary_factor", keys.number("partial_rotary_factor", share))
        rotary_dim = int(whole * share) if share <= 1 else 0
    if rotary_dim < 2 or rotary_dim % 2:
        raise keys.error("head_dim", f"such that an even part of it is rotated, 2 or more, which {rotary_dim} is not")
    if phi_names and kind in ("su", "yarn"):
        kind = "longrope"
    original = _PHI_POSITIONS if phi_names else None
    return Rope(theta, rotary_dim, _hf_scaling(kind, rope, keys, sizes, Rope(theta, rotary_dim), original))


def _hf_scaling(
    kind: str, rope: Keys, keys: Keys, sizes: Sizes, plain: Rope, own_positions: int | None
) -> Scaling | None:
    """own_positions: the family's original context, which counts more than one among the rotation's settings."""
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(rope.number("factor"))
    positions = sizes["max_position_embeddings"]
    name = "original_max_position_embeddings"
    original = rope.integer(name, positions, limits=POSITION_LIMITS) if own_positions is None else own_positions
    original = keys.integer(name, original, limits=POSITION_LIMITS)
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if low >= high:
            raise rope.error("low_freq_factor", f"less than high_freq_factor = {high}")
        return Llama3Scaling(rope.number("factor"), low, high, original)
    factor = rope.number("factor", positions / original)
    if kind == "longrope":
        short, long = (rope.numbers(f"{name}_factor", plain.rotary_dim // 2) for name in ("short", "long"))
        recommended = longrope_attention_factor(factor, original)
        return FactorScaling(short, long, original, rope.number("attention_factor", recommended))
    if plain.theta <= 1:
        raise rope.error("rope_theta", "greater than 1 with yarn")
    recommended = yarn_attention_factor(factor)
    if "mscale" in rope and "mscale_all_dim" in rope:
        mscale, of_all = rope.number("mscale"), rope.number("mscale_all_dim")
        recommended = yarn_attention_factor(factor, mscale) / yarn_attention_factor(factor, of_all)
    return YarnScaling(
        factor=factor,
        original_positions=original,
        attention_factor=rope.number("attention_factor", recommended),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.boolean("truncate", True),
    )


def reached_positions(rope: Rope, sizes: Sizes) -> int:
    """How long a context the model can have: YaRN is switched on by its settings alone, beside the old length."""
    positions = sizes["max_position_embeddings"]
    if not isinstance(rope.scaling, YarnScaling):
        return positions
    return min(max(positions, int(rope.scaling.factor * rope.scaling.original_positions)), POSITION_LIMITS[1])


def rope_from_gguf(keys: Keys, sizes: Sizes, tensor_names: Collection[str]) -> Rope:
    """From a GGUF file's metadata; factors of single frequencies lie in tensors."""
    name = keys.string("general.architecture")
    key = f"{name}.rope.dimension_count"
    rotary_dim = keys.integer(key, sizes["head_dim"], limits=(2, sizes["head_dim"]))
    if rotary_dim % 2:
        raise keys.error(key, "even")
    theta = keys.number(f"{name}.rope.freq_base", 10000.0)
    return Rope(theta, rotary_dim, _gguf_scaling(f"{name}.rope.scaling", theta, keys, sizes, tensor_names))


def _gguf_factor(prefix: str, keys: Keys) -> tuple[str, float | None]:
    """The key of how many times positions are stretched, an older one where there is none of today's, and what it says:
    None, as llama.cpp takes it, where it is 0 or missing."""
    today, older = f"{prefix}.factor", f"{prefix.removesuffix('.scaling')}.scale_linear"
    key = older if older in keys and today not in keys else today
    value = keys.values.get(key)
    is_unsaid = value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and value == 0)
    return key, None if is_unsaid else keys.number(key)


def _gguf_scaling(prefix: str, theta: float, keys: Keys, sizes: Sizes, tensor_names: Collection[str]) -> Scaling | None:
    factor_key, factor = _gguf_factor(prefix, keys)
    kind = keys.string(f"{prefix}.type", "none" if factor is None else "linear", allowed=_GGUF_TYPES)
    keys.only(f"{prefix}.yarn_ext_factor", None, -1.0, 1.0 if kind == "yarn" else 0.0)
    positions = sizes["max_position_embeddings"]
    original = keys.integer(f"{prefix}.original_context_length", positions, limits=POSITION_LIMITS)
    attention_factor = keys.number(f"{prefix}.attn_factor", 1.0)
    factors = None
    if _LLAMA3_FACTORS in tensor_names:
        factors = FactorScaling(_LLAMA3_FACTORS, _LLAMA3_FACTORS, original)
    elif _LONG_FACTORS in tensor_names or _SHORT_FACTORS in tensor_names or kind == "longrope":
        factors = FactorScaling(_SHORT_FACTORS, _LONG_FACTORS, original, attention_factor)
    if factors is not None:
        if kind not in ("none", "longrope"):
            raise keys.error(f"{prefix}.type", "'none' beside a tensor of factors")
        return factors
    if kind != "yarn":
        keys.only(f"{prefix}.attn_factor", None, 0.0, 1.0)
    if kind == "none":
        return None
    if factor is None:
        raise keys.error(factor_key, "a positive number")
    if kind == "linear":
        return LinearScaling(factor)
    if theta <= 1:
        raise keys.error(f"{prefix.removesuffix('.scaling')}.freq_base", "greater than 1 with yarn")
    keys.only(f"{prefix}.yarn_log_multiplier", None, 0.0)
    return YarnScaling(
        factor=factor,
        original_positions=original,
        attention_factor=attention_factor * keys.number(f"{prefix}.yarn_attn_factor", yarn_attention_factor(factor)),
        beta_fast=keys.number(f"{prefix}.yarn_beta_fast", 32.0),
        beta_slow=keys.number(f"{prefix}.yarn_beta_slow", 1.0),
    )
