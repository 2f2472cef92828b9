"""What a field of SamplingParams may be: each check returns the value in its one form, or raises InvalidRequestError
naming the field, the value and what is allowed."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real

from fastpaged.errors import InvalidRequestError

MAX_TOKEN_ID = 2**31 - 1


def refusal(name: str, value: object, allowed: str) -> InvalidRequestError:
    """The error itself, to be raised."""
    # Python refuses to write integers of thousands of digits.
    huge = isinstance(value, int) and value.bit_length() > 256
    return InvalidRequestError(f"{name} must be {allowed}, got {'a huge integer' if huge else reprlib.repr(value)}")


def number(name: str, value: object, low: float, high: float, allowed: str) -> float:
    """A float in [low, high]; NaN is in no range."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise refusal(name, value, allowed)
    try:
        as_float = float(value)
    except OverflowError:
        raise refusal(name, value, allowed) from None
    if not low <= as_float <= high:
        raise refusal(name, value, allowed)
    return as_float


def integer(name: str, value: object, low: int, high: int, allowed: str) -> int:
    """An int in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= int(value) <= high:
        raise refusal(name, value, allowed)
    return int(value)


def strings(name: str, value: object, allowed: str) -> tuple[str, ...]:
    """A string alone is a list of one; none of them may be empty."""
    if value is None:
        return ()
    if isinstance(value, str):
        if not value:
            raise refusal(name, value, allowed)
        return (value,)
    if not isinstance(value, (list, tuple)):
        raise refusal(name, value, allowed)
    for position, item in enumerate(value):
        if not isinstance(item, str) or not item:
            raise refusal(f"{name}[{position}]", item, "a non-empty string")
    return tuple(value)


def token_ids(name: str, value: object, allowed: str) -> tuple[int, ...]:
    """Each id once, in the order of first mention. Whether they are in the vocabulary is the engine's to check."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise refusal(name, value, allowed)
    checked = {
        integer(f"{name}[{position}]", item, 0, MAX_TOKEN_ID, "a token id"): None for position, item in enumerate(value)
    }
    return tuple(checked)


def biases(name: str, value: object, limit: float) -> dict[int, float]:
    """A copy of {token id: bias}, each bias cut to [-limit, limit]."""
    if not isinstance(value, Mapping):
        raise refusal(name, value, "None, or a dict of token ids and numbers")
    cut = {}
    for token_id, bias in value.items():
        key = integer(f"a key of {name}", token_id, 0, MAX_TOKEN_ID, "a token id")
        given = number(f"{name}[{key}]", bias, -math.inf, math.inf, "a number")
        cut[key] = min(max(given, -limit), limit)
    return cut


def is_one_of(value: object, allowed: Iterable[object]) -> bool:
    """Of the same type, too: 1 is not True, and no dict of a user's is asked whether it equals 1."""
    return any(value is item or (type(value) is type(item) and value == item) for item in allowed)


def not_served(name: str, value: object, allowed: Sequence[object], why: str) -> None:
    """Refuses what is not in `allowed`, with the reason."""
    if not is_one_of(value, allowed):
        raise refusal(name, value, " or ".join(dict.fromkeys(map(repr, allowed))) + f" ({why})")
