"""Ways to stretch rotary positions beyond the context a model was first trained for: they change the frequencies."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from fastpaged.models.rope import Rope
    from fastpaged.models.weight_source import WeightSource

Frequencies = npt.NDArray[np.float32]  # [rotary_dim / 2], radians per position, fastest first


@dataclass(frozen=True)
class LinearScaling:
    """Every position counts as position / factor."""

    factor: float

    def scaled(self, frequencies: Frequencies) -> Frequencies:
        """What the plain frequencies become."""
        scaled: Frequencies = frequencies / np.float32(self.factor)
        return scaled


@dataclass(frozen=True)
class Llama3Scaling:
    """Slow frequencies are divided by the factor, fast ones are kept, those between the two are blended."""

    factor: float
    low_freq_factor: float  # periods in the original context: fewer are slow
    high_freq_factor: float  # and more are fast
    original_positions: int

    def scaled(self, frequencies: Frequencies) -> Frequencies:
        """What the plain frequencies become."""
        periods = np.float32(self.original_positions) / (np.float32(2 * math.pi) / frequencies)
        low, high = np.float32(self.low_freq_factor), np.float32(self.high_freq_factor)
        kept = np.clip((periods - low) / (high - low), 0, 1)
        scaled: Frequencies = (1 - kept) * frequencies / np.float32(self.factor) + kept * frequencies
        return scaled


@dataclass(frozen=True)
class YarnScaling:
    """YaRN: as above, blended by the frequency's number, and keys and queries grow by attention_factor."""

    factor: float
    original_positions: int
    attention_factor: float
    beta_fast: float = 32.0  # rotations in the original context: more are kept as they are
    beta_slow: float = 1.0  # and fewer are divided by the factor
    truncate: bool = True  # the bounds of the blend are whole numbers

    def scaled(self, frequencies: Frequencies, rope: Rope) -> Frequencies:
        """What the plain frequencies become."""
        low, high = self._number(self.beta_fast, rope), self._number(self.beta_slow, rope)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rope.rotary_dim - 1)
        width = high - low if high != low else 0.001
        slow = np.clip((np.arange(rope.rotary_dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(width), 0, 1)
        scaled: Frequencies = frequencies / np.float32(self.factor) * slow + frequencies * (1 - slow)
        return scaled

    def _number(self, rotations: float, rope: Rope) -> float:
        """Of the frequency that turns so often in the original context."""
        ratio = self.original_positions / (rotations * 2 * math.pi)
        return rope.rotary_dim * math.log(ratio) / (2 * math.log(rope.theta))


@dataclass(frozen=True)
class FactorScaling:
    """Each frequency is divided by its own factor: a short factor where no more than original_positions are asked for,
    a long one otherwise. Factors are numbers, or the name of a tensor that holds them.

    Which of the two is used is settled for the whole engine by its max_model_len, as the rotated keys are kept: a
    sequence that switched on the way would have to be computed anew. `transformers` switches within a sequence.
    """

    short: tuple[float, ...] | str
    long: tuple[float, ...] | str
    original_positions: int
    attention_factor: float = 1.0

    def scaled(self, frequencies: Frequencies, num_positions: int, source: WeightSource | None) -> Frequencies:
        """What the plain frequencies become. source: where the tensors are."""
        factors: npt.ArrayLike = self.long if num_positions > self.original_positions else self.short
        if isinstance(factors, str):
            if source is None:
                raise ValueError(f"source must hold the tensor {factors!r}, got None")
            factors = source.vector(factors)
        divisors: Frequencies = np.asarray(factors, np.float32)
        scaled: Frequencies = frequencies / divisors
        return scaled

    def tell_of_choice(self, num_positions: int) -> None:
        """Logs which factors a table of so many positions has: a warning where short texts are computed otherwise than
        by `transformers`."""
        if self.short == self.long:
            return
        if num_positions > self.original_positions:
            logging.getLogger(__name__).warning(
                "LongRoPE: the long factors serve all requests, since max_model_len = %d is more than %d. transformers "
                "computes texts of up to %d tokens with the short factors; max_model_len=%d or less takes these",
                num_positions,
                *(self.original_positions,) * 3,
            )
        else:
            logging.getLogger(__name__).info(
                "LongRoPE: the short factors serve all requests, since max_model_len = %d is no more than %d; a "
                "greater one takes the long factors",
                num_positions,
                self.original_positions,
            )

    def tensors(self, rope: Rope) -> dict[str, tuple[int, ...]]:
        """Name -> shape of those it needs."""
        return {name: (rope.rotary_dim // 2,) for name in (self.short, self.long) if isinstance(name, str)}


Scaling = LinearScaling | Llama3Scaling | YarnScaling | FactorScaling


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """The one that the inventors of YaRN recommend."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def longrope_attention_factor(factor: float, original_positions: int) -> float:
    """The one that the inventors of LongRoPE recommend."""
    return math.sqrt(1 + math.log(factor) / math.log(original_positions)) if factor > 1 else 1.0
