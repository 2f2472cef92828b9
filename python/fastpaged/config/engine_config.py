"""How an engine is set up: frozen, and validated once, here."""

from __future__ import annotations

import os
import reprlib
from dataclasses import dataclass

from fastpaged.errors import InvalidRequestError

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class EngineConfig:
    """How one engine runs one model. Every bad value is an InvalidRequestError naming the argument."""

    model: str  # a .gguf file, a model folder, or a name (org/name)
    max_model_len: int | None = None  # tokens of prompt and answer; None: what the model was trained for
    block_size: int = 16  # tokens per KV block
    num_blocks: int | None = None  # of the KV pool; None: sized from kv_cache_memory_bytes or free memory
    kv_cache_memory_bytes: int | None = None
    swap_space: float | None = None  # GiB of host memory for swapped requests; None: 4, or what is there and of use
    preemption_mode: str | None = None  # "recompute", "swap", or None: "swap" for requests of several sequences alone
    max_num_seqs: int = 256  # sequences in one step
    max_num_batched_tokens: int = 2048  # tokens in one step
    long_prefill_token_threshold: int = 0  # most tokens of one sequence in one step; 0: no limit
    seed: int = 0  # requests without a seed draw theirs from it
    max_logprobs: int = 20  # most alternatives a request may ask for; -1: the whole vocabulary
    num_threads: int | None = None  # None: the CPUs this process may use
    isa: str | None = None  # name of an op table; None: FASTPAGED_ISA, or the best this CPU has

    def __post_init__(self) -> None:
        if isinstance(self.model, os.PathLike):
            object.__setattr__(self, "model", os.fspath(self.model))
        if not isinstance(self.model, str) or not self.model:
            raise InvalidRequestError(
                f"model must be the path of a .gguf file or a model folder, or a name on the hub (org/name), "
                f"got {self.model!r}"
            )
        for name, (low, high) in _ENGINE_RANGES.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                none = "None or " if name in _OPTIONAL else ""
                raise InvalidRequestError(f"{name} must be {none}an integer from {low} to {high}, got {value!r}")
        if self.num_blocks is not None and self.kv_cache_memory_bytes is not None:
            raise InvalidRequestError(
                f"num_blocks and kv_cache_memory_bytes both size the KV pool: give one, "
                f"got {self.num_blocks} and {self.kv_cache_memory_bytes}"
            )
        self._check_preemption()
        if self.isa is not None and not isinstance(self.isa, str):
            raise InvalidRequestError(f"isa must be None or the name of an op table, got {self.isa!r}")

    @property
    def max_num_rows(self) -> int:
        """Rows of logits in one step: one for each sequence, and room for prompts whose logprobs are wanted."""
        return max(self.max_num_seqs, min(_ROWS_FOR_PROMPTS, self.max_num_batched_tokens))

    def _check_preemption(self) -> None:
        space = self.swap_space
        if space is not None:
            is_number = isinstance(space, (int, float)) and not isinstance(space, bool)
            if not is_number or not 0 <= space <= _MAX_SWAP_SPACE:  # also refuses NaN
                raise InvalidRequestError(
                    f"swap_space must be None or a number of GiB from 0 to {_MAX_SWAP_SPACE}, got {reprlib.repr(space)}"
                )
        mode = self.preemption_mode
        if mode is not None and not (isinstance(mode, str) and mode in PREEMPTION_MODES):
            allowed = " or ".join(map(repr, (None, *PREEMPTION_MODES)))
            raise InvalidRequestError(f"preemption_mode must be {allowed}, got {reprlib.repr(mode)}")


PREEMPTION_MODES = ("recompute", "swap")
_ROWS_FOR_PROMPTS = 64  # of a vocabulary of 128k: 32 MiB
_MAX_SWAP_SPACE = 2**33 - 1  # GiB: below 2**63 bytes
_OPTIONAL = ("max_model_len", "num_blocks", "kv_cache_memory_bytes", "num_threads")
_ENGINE_RANGES = {
    "max_model_len": (2, _INT32_MAX),
    "block_size": (1, 256),
    "num_blocks": (1, _INT32_MAX),
    "kv_cache_memory_bytes": (1, 2**63 - 1),
    "max_num_seqs": (1, _INT32_MAX),
    "max_num_batched_tokens": (1, 2**20),
    "long_prefill_token_threshold": (0, _INT32_MAX),
    "seed": (0, 2**64 - 1),
    "max_logprobs": (-1, _INT32_MAX),
    "num_threads": (1, 1024),
}
