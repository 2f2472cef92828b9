"""The KV cache's memory: how many blocks, and the bytes themselves."""

from __future__ import annotations

import logging
import mmap
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fastpaged.errors import InvalidRequestError
from fastpaged.worker.free_memory import free_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastpaged.config import EngineConfig, ModelConfig

_SHARE_OF_FREE_MEMORY = 0.25
_INT32_MAX = 2**31 - 1  # slots, block_id * block_size + offset, travel as int32


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


class KVMemory:
    """The bytes of the pool, committed page by page when first written.

    `array`: [num_blocks, num_layers, 2 (K|V), num_kv_heads, block_size, head_dim], bfloat16 bits.
    """

    def __init__(self, num_blocks: int, block_size: int, model: ModelConfig) -> None:
        shape = (num_blocks, model.num_layers, 2, model.num_kv_heads, block_size, model.head_dim)
        num_bytes = num_blocks * block_size * model.kv_bytes_per_token
        try:
            memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:
            raise InvalidRequestError(
                f"a KV pool of {num_blocks} blocks needs {num_bytes} bytes, which the system refuses ({error}); "
                f"give a smaller num_blocks or kv_cache_memory_bytes"
            ) from None
        self.array: npt.NDArray[np.uint16] = np.frombuffer(memory, np.uint16).reshape(shape)

    def fill_blocks(self, block_ids: Sequence[int] | npt.NDArray[np.int32], value_bits: int) -> None:
        """Every K and V of these blocks becomes the bfloat16 of these bits; tests fill free blocks with NaN, 0x7FC0."""
        self.array[np.asarray(block_ids, np.int64)] = value_bits
