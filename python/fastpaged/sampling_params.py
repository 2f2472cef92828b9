"""SamplingParams: what a request asks of the sampler. Validated once, here."""

from __future__ import annotations

import reprlib
import warnings
from dataclasses import dataclass
from numbers import Integral, Real

from fastpaged.errors import InvalidRequestError

GREEDY_BELOW = 1e-5  # temperatures under this are greedy
MIN_TEMPERATURE = 0.01  # smaller ones, when not greedy, overflow the softmax for nothing
MAX_SEED = 2**64 - 1


@dataclass(frozen=True)
class SamplingParams:
    """How the next tokens are chosen, and when to stop.

    temperature: [0, 2]; below 1e-5 the most likely token is taken (greedy), and top_p, top_k, min_p are reset.
    top_p: (0, 1]; keep the smallest set of tokens whose probability reaches it. 1 is off.
    top_k: keep the k most likely tokens. 0 or -1 is off.
    min_p: [0, 1]; keep tokens at least this likely relative to the best. 0 is off.
    seed: 0 to 2**64 - 1; with it, the answer depends on the request alone. None or -1: the engine draws one
        and shows it as CompletionOutput.seed.
    max_tokens: the most tokens to generate; None is the rest of the model's context. More than that is cut to it.
    ignore_eos: go on after an end-of-sequence token.
    logprobs: return the logprob of each generated token and of this many alternatives. None is off, -1 the whole
        vocabulary; at most the engine's max_logprobs.
    skip_special_tokens: leave special tokens out of the text.

    Raises InvalidRequestError naming the field, the value and what is allowed.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    ignore_eos: bool = False
    logprobs: int | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_limits()
        for name in ("ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise _refusal(name, getattr(self, name), "True or False")
        self._normalize_temperature()

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0

    def _check_numbers(self) -> None:
        self._set("temperature", _number("temperature", self.temperature, 0.0, 2.0, "a number in [0, 2]"))
        self._set("top_p", _number("top_p", self.top_p, 0.0, 1.0, "a number in (0, 1]"))
        if self.top_p == 0.0:
            raise _refusal("top_p", self.top_p, "a number in (0, 1]")
        self._set("min_p", _number("min_p", self.min_p, 0.0, 1.0, "a number in [0, 1]"))
        top_k = _integer("top_k", self.top_k, -1, 2**31 - 1, "0 or -1 (off), or an integer from 1 to 2**31 - 1")
        self._set("top_k", max(top_k, 0))

    def _check_limits(self) -> None:
        if self.seed is not None:
            seed = _integer("seed", self.seed, -1, MAX_SEED, "None or -1 (drawn), or an integer from 0 to 2**64 - 1")
            self._set("seed", None if seed == -1 else seed)
        if self.max_tokens is not None:
            allowed = "None (the rest of the context), or an integer from 1 to 2**31 - 1"
            self._set("max_tokens", _integer("max_tokens", self.max_tokens, 1, 2**31 - 1, allowed))
        if self.logprobs is not None:
            logprobs = 1 if self.logprobs is True else self.logprobs
            allowed = "None (off), -1 (the whole vocabulary), or an integer >= 0"
            self._set("logprobs", _integer("logprobs", logprobs, -1, 2**31 - 1, allowed))

    def _normalize_temperature(self) -> None:
        if self.temperature < GREEDY_BELOW:
            for name, value in (("temperature", 0.0), ("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
                self._set(name, value)
        elif self.temperature < MIN_TEMPERATURE:
            warnings.warn(f"temperature {self.temperature} is raised to {MIN_TEMPERATURE}; 0 is greedy", stacklevel=4)
            self._set("temperature", MIN_TEMPERATURE)

    def _set(self, name: str, value: float | int | None) -> None:
        object.__setattr__(self, name, value)


def _refusal(name: str, value: object, allowed: str) -> InvalidRequestError:
    # Python refuses to write integers of thousands of digits.
    huge = isinstance(value, int) and value.bit_length() > 256
    return InvalidRequestError(f"{name} must be {allowed}, got {'a huge integer' if huge else reprlib.repr(value)}")


def _number(name: str, value: object, low: float, high: float, allowed: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _refusal(name, value, allowed)
    try:
        number = float(value)
    except OverflowError:
        raise _refusal(name, value, allowed) from None
    if not low <= number <= high:  # NaN is in no range
        raise _refusal(name, value, allowed)
    return number


def _integer(name: str, value: object, low: int, high: int, allowed: str) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= int(value) <= high:
        raise _refusal(name, value, allowed)
    return int(value)
