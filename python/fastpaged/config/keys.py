"""Typed look-ups in a model's configuration."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping

from fastpaged.errors import ModelFormatError

INT32_MAX = 2**31 - 1
FLOAT32_MAX = 3.4028234663852886e38


class Keys:
    """A mapping and what to call it in messages: a wrong value is a ModelFormatError that names its key."""

    def __init__(self, source: str, values: Mapping[str, object]) -> None:
        self.source = source
        self.values = values

    def error(self, key: str, expected: str) -> ModelFormatError:
        found = f"got {reprlib.repr(self.values[key])}" if key in self.values else "but it is missing"
        return ModelFormatError(f"{self.source}: {key} must be {expected}, {found}")

    def integer(self, key: str, default: int | None = None, *, limits: tuple[int, int] = (1, INT32_MAX)) -> int:
        value = self._get(key, default)
        low, high = limits
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(key, f"an integer from {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(key, "a number")
        if not 0 < value <= FLOAT32_MAX:  # also refuses NaN; compared as it is: a long integer fits into no float
            raise self.error(key, "a positive number that float32 can hold")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key)
        return default if value is None else value
