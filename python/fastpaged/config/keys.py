"""Typed look-ups in a model's configuration."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping

import numpy as np

from fastpaged.errors import ModelFormatError

INT32_MAX = 2**31 - 1
FLOAT32_MAX = 3.4028234663852886e38


class Keys:
    """A mapping and what to call it in messages: a wrong value is a ModelFormatError that names its key.

    A value of None counts as missing; a missing one is an error where there is no default.
    """

    def __init__(self, source: str, values: Mapping[str, object]) -> None:
        self.source = source
        self.values = values

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def error(self, key: str, expected: str) -> ModelFormatError:
        """To raise: `key` must be `expected`, and what it is."""
        found = f"got {reprlib.repr(self.values[key])}" if key in self.values else "but it is missing"
        return ModelFormatError(f"{self.source}: {key} must be {expected}, {found}")

    def integer(self, key: str, default: int | None = None, *, limits: tuple[int, int] = (1, INT32_MAX)) -> int:
        """Within the limits, both included."""
        value = self._get(key, default)
        low, high = limits
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(key, f"an integer from {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Positive, and not beyond float32."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(key, "a number")
        if not 0 < value <= FLOAT32_MAX:  # also refuses NaN; compared as it is: a long integer fits into no float
            raise self.error(key, "a positive number that float32 can hold")
        return float(value)

    def numbers(self, key: str, length: int) -> tuple[float, ...]:
        """A list, or a NumPy array, of positive numbers."""
        value = self._get(key, None)
        items = value.tolist() if isinstance(value, np.ndarray) else value
        if not isinstance(items, list) or len(items) != length:
            raise self.error(key, f"a list of {length} numbers")
        where = Keys(f"{self.source}, {key}", {str(i): item for i, item in enumerate(items)})
        return tuple(where.number(str(i)) for i in range(length))

    def boolean(self, key: str, default: bool) -> bool:
        """True or False, and no number."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def string(self, key: str, default: str | None = None, *, allowed: tuple[str, ...] = ()) -> str:
        """allowed: if given, the strings there are."""
        value = self._get(key, default)
        if not isinstance(value, str) or (allowed and value not in allowed):
            raise self.error(key, f"one of {', '.join(allowed)}" if allowed else "a string")
        return value

    def strings(self, key: str, length: int, *, allowed: tuple[str, ...]) -> tuple[str, ...]:
        """A list of so many of the allowed strings."""
        value = self._get(key, None)
        if not isinstance(value, list) or len(value) != length:
            raise self.error(key, f"a list of {length} strings")
        for item in value:
            if not isinstance(item, str) or item not in allowed:
                raise ModelFormatError(
                    f"{self.source}: {key} must be of {', '.join(allowed)}, got {reprlib.repr(item)} among them"
                )
        return tuple(value)

    def within(self, key: str) -> Keys:
        """An object within this one; empty if there is none."""
        value = self._get(key, {})
        if not isinstance(value, Mapping):
            raise self.error(key, "an object or null")
        return Keys(f"{self.source}, {key}", value)

    def only(self, key: str, *allowed: object, why: str = "") -> None:
        """For what would change the arithmetic and is not supported: refuses every other value. None is missing."""
        value = self.values.get(key)
        if not any(type(value) is type(other) and value == other for other in allowed):  # an array has no one truth
            raise self.error(key, " or ".join(map(repr, allowed)) + (f" ({why})" if why else ""))

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key)
        return default if value is None else value
