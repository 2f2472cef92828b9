"""The KV cache's memory, of the device and of the host: how many blocks, and the bytes themselves."""

from __future__ import annotations

import logging
import mmap
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fastpaged import _core
from fastpaged.errors import InvalidRequestError
from fastpaged.worker.free_memory import free_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastpaged.config import EngineConfig, ModelConfig

_SHARE_OF_FREE_MEMORY = 0.25
_INT32_MAX = 2**31 - 1  # slots, block_id * block_size + offset, travel as int32
_GIB = 1 << 30
_DEFAULT_SWAP_SPACE = 4  # GiB


def num_kv_blocks(config: EngineConfig, model: ModelConfig, max_model_len: int, free_bytes: int | None = None) -> int:
    """Blocks of the KV pool: num_blocks, or what kv_cache_memory_bytes holds, or else
    min(what max_num_seqs sequences of max_model_len could use, 25 % of free memory).

    A pool smaller than max_model_len is legal, with a warning: longer requests end when it is full. One that holds no
    block is an InvalidRequestError. free_bytes: for tests; None asks the system.
    """
    block_bytes = config.block_size * model.kv_bytes_per_token
    if config.num_blocks is not None:
        num_blocks, source = config.num_blocks, f"num_blocks = {config.num_blocks}"
    elif config.kv_cache_memory_bytes is not None:
        num_blocks = config.kv_cache_memory_bytes // block_bytes
        source = f"kv_cache_memory_bytes = {config.kv_cache_memory_bytes}"
    else:
        free_bytes = free_memory_bytes() if free_bytes is None else free_bytes
        useful = config.max_num_seqs * -(-max_model_len // config.block_size)
        num_blocks = min(useful, int(free_bytes * _SHARE_OF_FREE_MEMORY) // block_bytes)
        source = f"25 % of {free_bytes} free bytes"
    if num_blocks < 1:
        raise InvalidRequestError(
            f"the KV pool must hold at least one block of {config.block_size} tokens, {block_bytes} bytes; "
            f"{source} holds none"
        )
    if num_blocks * config.block_size > _INT32_MAX:
        if config.num_blocks is not None:
            raise InvalidRequestError(
                f"num_blocks must be at most {_INT32_MAX // config.block_size} with block_size = {config.block_size}, "
                f"got {config.num_blocks}"
            )
        num_blocks = _INT32_MAX // config.block_size
    if num_blocks * config.block_size < max_model_len:
        logging.getLogger(__name__).warning(
            "The KV pool holds %d tokens (%s), fewer than max_model_len = %d: requests that grow beyond it end early. "
            "Give more kv_cache_memory_bytes, or a smaller max_model_len.",
            num_blocks * config.block_size,
            source,
            max_model_len,
        )
    return num_blocks


def num_host_blocks(
    config: EngineConfig, model: ModelConfig, max_model_len: int, num_blocks: int, free_bytes: int | None = None
) -> int:
    """Blocks of host memory for swapped requests: what swap_space holds. Without one, min(what 4 GiB hold, what
    max_num_seqs sequences could use, 25 % of the free memory that the KV pool leaves).

    num_blocks: of the KV pool. A swap_space beyond the free memory that the pool leaves is an InvalidRequestError; 0 is
    legal: then every preempted request is recomputed. free_bytes: for tests; None asks the system.
    """
    if config.swap_space == 0:
        return 0
    block_bytes = config.block_size * model.kv_bytes_per_token
    free_bytes = free_memory_bytes() if free_bytes is None else free_bytes
    left = max(0, free_bytes - num_blocks * block_bytes)
    if config.swap_space is None:
        per_sequence = min(num_blocks, -(-max_model_len // config.block_size))
        most = min(_DEFAULT_SWAP_SPACE * _GIB, int(left * _SHARE_OF_FREE_MEMORY))
        return min(most // block_bytes, config.max_num_seqs * per_sequence, _INT32_MAX)
    needed = int(config.swap_space * _GIB)
    if needed > left:
        raise InvalidRequestError(
            f"swap_space must fit into the memory that is left, got {config.swap_space} GiB: need {needed} bytes, have "
            f"{left} ({free_bytes} free, less {num_blocks * block_bytes} for the KV pool)"
        )
    return min(needed // block_bytes, _INT32_MAX)


class KVMemory:
    """The bytes of the pool and of the host blocks that swapped requests wait in, committed page by page when first
    written.

    On the CPU both are the same kind of memory. Host blocks are of use all the same: they are not the scheduler's to
    share out, so that what was computed survives its eviction from the pool; and swapping can be tested anywhere.

    array: [num_blocks, num_layers, 2 (K|V), num_kv_heads, block_size, head_dim], bfloat16 bits.
    host_array: the same, of num_host_blocks blocks.
    num_bytes_copied: so far, by kind of copy.
    """

    def __init__(self, num_blocks: int, block_size: int, model: ModelConfig, num_host_blocks: int = 0) -> None:
        self._block_bytes = block_size * model.kv_bytes_per_token
        shape = (model.num_layers, 2, model.num_kv_heads, block_size, model.head_dim)
        self.array = self._map(num_blocks, shape, "a KV pool", "num_blocks or kv_cache_memory_bytes")
        self.host_array = self._map(num_host_blocks, shape, "host memory", "swap_space")
        self.num_bytes_copied = {"swap_out": 0, "swap_in": 0, "copy_on_write": 0}

    def copy(self, plan: _core.SchedulerOutput) -> int:
        """Runs the plan's copies, in order; returns their bytes. Releases the GIL."""
        num_bytes = _core.copy_blocks(plan, self.array, self.host_array)
        if num_bytes:
            for kind, _, _, num_blocks in plan.copies:
                self.num_bytes_copied[kind] += num_blocks * self._block_bytes
        return num_bytes

    def fill_blocks(self, block_ids: Sequence[int] | npt.NDArray[np.int32], value_bits: int) -> None:
        """Every K and V of these blocks becomes the bfloat16 of these bits; tests fill free blocks with NaN, 0x7FC0."""
        self.array[np.asarray(block_ids, np.int64)] = value_bits

    def _map(self, num_blocks: int, shape: tuple[int, ...], what: str, settings: str) -> npt.NDArray[np.uint16]:
        if num_blocks == 0:
            return np.empty((0, *shape), np.uint16)
        num_bytes = num_blocks * self._block_bytes
        try:
            memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:
            raise InvalidRequestError(
                f"{what} of {num_blocks} blocks needs {num_bytes} bytes, which the system refuses ({error}); "
                f"give a smaller {settings}"
            ) from None
        return np.frombuffer(memory, np.uint16).reshape((num_blocks, *shape))
