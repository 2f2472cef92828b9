"""Pinned prefixes: KV blocks of prompts' beginnings that stay while others come and go."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from fastpaged import param_checks as check
from fastpaged.engine.admission import checked_salt
from fastpaged.engine.chat_prompt import chat_prompt
from fastpaged.engine.deferred_signals import DeferredSignals
from fastpaged.engine.no_tokenizer import NoTokenizer
from fastpaged.errors import InvalidRequestError, StepFailedError
from fastpaged.sampling_params import SamplingParams
from fastpaged.tokenizer.chat_messages import ChatMessage

if TYPE_CHECKING:
    from fastpaged import _core
    from fastpaged.engine.admission import Admission
    from fastpaged.engine.exclusive import Exclusive
    from fastpaged.outputs import RequestOutput
    from fastpaged.tokenizer import Tokenizer

MAX_TTL = 1e9  # seconds

Prefix = str | Sequence[int] | Sequence[ChatMessage]


@dataclass(frozen=True)
class PinnedPrefix:
    """A prefix whose KV blocks are kept, as it stood when it was asked for.

    num_tokens: in its num_blocks blocks, all of them full; what the prefix has beyond them is not pinned.
    resident: its blocks are there, and held. False: some had to go so that a request could run, or the prefix cache was
        reset; the next request that computes them brings them back.
    expires_ts: when it is unpinned, by time.monotonic(); None: never.
    """

    id: int
    num_tokens: int
    num_blocks: int
    resident: bool
    expires_ts: float | None
    cache_salt: str | None


@dataclass(frozen=True)
class Pin:
    """A prefix that may be pinned: checked, and cut to whole blocks. cache_salt: "" without one."""

    id: int
    token_ids: list[int]
    num_blocks: int
    ttl: float | None
    cache_salt: str

    @property
    def prompt(self) -> dict[str, object]:
        """Of the request that computes it: answer it with COMPUTING."""
        salt = {"cache_salt": self.cache_salt} if self.cache_salt else {}
        return {"prompt_token_ids": self.token_ids, **salt}


# A request has to have an answer.
COMPUTING = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False)


class PinnedPrefixes:
    """The pins of one engine. Which blocks they hold is the scheduler's business; until when, this one's.

    prepare() is free for all threads, the others are for the engine's.
    """

    def __init__(
        self,
        scheduler: _core.Scheduler,
        admission: Admission,
        tokenizer: Tokenizer,
        exclusive: Exclusive,
        *,
        block_size: int,
        max_blocks: int | None,
    ) -> None:
        """max_blocks: of all pins together; None: there is no prefix cache."""
        self._scheduler = scheduler
        self._admission = admission
        self._tokenizer = tokenizer
        self._exclusive = exclusive
        self._block_size = block_size
        self._max_blocks = max_blocks
        self._ids = itertools.count()
        self._pins: dict[int, Pin] = {}
        self._expiries: dict[int, float] = {}  # by id, of those that have one
        self.clock: Callable[[], float] = time.monotonic

    def prepare(self, prefix: Prefix, ttl: float | None, cache_salt: str | None) -> Pin:
        """Raises InvalidRequestError for what can never be pinned."""
        if self._max_blocks is None:
            raise InvalidRequestError("prefixes are pinned in the prefix cache: enable_prefix_caching must be True")
        allowed = f"None, or a number of seconds above 0 and at most {MAX_TTL:g}"
        seconds = None if ttl is None else check.number("ttl", ttl, 0.0, MAX_TTL, allowed)
        if seconds == 0.0:
            raise check.refusal("ttl", ttl, allowed)
        salt = "" if cache_salt is None else checked_salt("cache_salt", cache_salt)
        try:
            token_ids = self._token_ids(prefix)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"prefix: {error}") from error
        num_blocks = len(token_ids) // self._block_size
        if num_blocks == 0:
            raise InvalidRequestError(
                f"prefix must fill at least one KV block of {self._block_size} tokens, got {len(token_ids)}"
            )
        self._check_budget(num_blocks, 0)
        return Pin(next(self._ids), token_ids[: num_blocks * self._block_size], num_blocks, seconds, salt)

    def hold(self, pin: Pin) -> bool:
        """Pins what is there of a prefix, and the rest once it is computed. Whether all is there.

        InvalidRequestError beyond the budget. It has no end yet: see start_ttl().
        """
        with self._exclusive, DeferredSignals():
            self._expire()
            self._check_budget(pin.num_blocks, sum(other.num_blocks for other in self._pins.values()))
            self._scheduler.pin(pin.id, pin.token_ids, pin.cache_salt)
            self._pins[pin.id] = pin
            return self._is_resident()[pin.id]

    def start_ttl(self, pin: Pin) -> PinnedPrefix:
        """From now on the time counts. InvalidRequestError if somebody has unpinned it."""
        with self._exclusive, DeferredSignals():
            if pin.id not in self._pins:
                raise InvalidRequestError(f"prefix {pin.id} was unpinned while it was computed")
            if pin.ttl is not None:
                self._expiries[pin.id] = self.clock() + pin.ttl
            return self._shown(pin, self._is_resident()[pin.id])

    def release(self, pin_id: int) -> bool:
        """Its blocks are as others are from then on. False if there is no such pin (any more)."""
        if isinstance(pin_id, bool) or not isinstance(pin_id, int):
            raise InvalidRequestError(f"the id of a pinned prefix must be an int, got {pin_id!r:.80}")
        with self._exclusive, DeferredSignals():
            self._expire()
            if self._pins.pop(pin_id, None) is None:
                return False
            self._expiries.pop(pin_id, None)
            self._scheduler.unpin(pin_id)
            return True

    def all(self) -> list[PinnedPrefix]:
        """The oldest first."""
        with self._exclusive, DeferredSignals():
            self._expire()
            is_resident = self._is_resident()
            return [self._shown(pin, is_resident[pin.id]) for pin in self._pins.values()]

    def expire(self) -> None:
        """Unpins those whose time is up."""
        if self._expiries:
            self._expire()

    def _expire(self) -> None:
        now = self.clock() if self._expiries else 0.0
        for pin_id in [pin_id for pin_id, expiry in self._expiries.items() if expiry <= now]:
            del self._expiries[pin_id], self._pins[pin_id]
            self._scheduler.unpin(pin_id)

    def _token_ids(self, prefix: Prefix) -> list[int]:
        if isinstance(prefix, (list, tuple)) and prefix and all(isinstance(item, Mapping) for item in prefix):
            if isinstance(self._tokenizer, NoTokenizer):
                raise InvalidRequestError("messages need a tokenizer, and there is none with skip_tokenizer_init=True")
            messages = cast("Sequence[ChatMessage]", prefix)
            return self._admission.tokens(chat_prompt(self._tokenizer, messages, add_generation_prompt=False))
        if not isinstance(prefix, (str, list, tuple)):
            raise InvalidRequestError(f"expected a string, token ids or messages, got {type(prefix).__name__}")
        return self._admission.tokens(cast("str | list[int]", prefix))

    def _check_budget(self, num_blocks: int, num_taken: int) -> None:
        have = self._max_blocks or 0
        if num_taken + num_blocks > have:
            taken = f", of which pinned ones take {num_taken}" if num_taken else ""
            raise InvalidRequestError(
                f"prefix must fit the budget of pinned prefixes, {have} KV blocks of {self._block_size} tokens{taken}; "
                f"it needs {num_blocks}. Unpin others, or give the engine more pinned_prefix_budget"
            )

    def _is_resident(self) -> dict[int, bool]:
        return {pin.id: pin.num_held_blocks == pin.num_blocks for pin in self._scheduler.pins()}

    def _shown(self, pin: Pin, resident: bool) -> PinnedPrefix:
        return PinnedPrefix(
            id=pin.id,
            num_tokens=len(pin.token_ids),
            num_blocks=pin.num_blocks,
            resident=resident,
            expires_ts=self._expiries.get(pin.id),
            cache_salt=pin.cache_salt or None,
        )


def check_computed(output: RequestOutput) -> None:
    """Raises StepFailedError if the request that was to compute a prefix has failed."""
    if output.outputs[0].finish_reason == "error":
        raise StepFailedError("the prefix could not be computed: the model's logits held a NaN")
