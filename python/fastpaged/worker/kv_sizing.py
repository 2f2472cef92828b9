"""How long a context may be, and of how many blocks the KV pool and the host's memory are."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpaged.config.dtypes import kv_dtype
from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from fastpaged.config import EngineConfig, ModelConfig

AUTO_FIT = -1  # as max_model_len: what the pool holds
_PARTS_OF_FREE_MEMORY = 4  # the pool is one of them, and so is the host's memory
_INT32_MAX = 2**31 - 1  # slots, block_id * block_size + offset, travel as int32
_GIB = 1 << 30
_DEFAULT_SWAP_SPACE = 4  # GiB


@dataclass(frozen=True)
class Memory:
    """What there is before anything is loaded, and what the weights will take of it, in bytes."""

    free: int
    weights: int = 0

    def left(self, model: ModelConfig, max_model_len: int) -> int:
        """By the weights and by the tables that are as long as the context."""
        return max(0, self.free - self.weights - max_model_len * model.table_bytes_per_position)


def fitted_max_model_len(config: EngineConfig, model: ModelConfig, memory: Memory) -> int:
    """config.max_model_len; what the model was made for where there is none; of that, what the pool holds, for -1.

    More than the model was made for, and a pool that does not hold two tokens, are an InvalidRequestError.
    """
    limit = model.max_position_embeddings
    if config.max_model_len is None:
        return limit
    if config.max_model_len == AUTO_FIT:
        pool = _pool(config, model, 0, memory)
        if pool.num_tokens < 2:
            _check_memory(config, model, 2, 1, memory)
            raise pool.too_small(2, "two tokens, a prompt's and an answer's")
        if config.num_blocks is None and config.kv_cache_memory_bytes is None:
            # The longer the context, the longer the tables, and the less is left for the pool to have its part of.
            token_bytes = _PARTS_OF_FREE_MEMORY * pool.token_bytes + model.table_bytes_per_position
            num_blocks = memory.left(model, 0) // (config.block_size * token_bytes)
            return max(2, min(limit, num_blocks * config.block_size))
        return min(limit, pool.num_tokens)
    if config.max_model_len > limit:
        raise InvalidRequestError(
            f"max_model_len must be at most {limit}, the positions the model was trained for, "
            f"got {config.max_model_len}"
        )
    return config.max_model_len


def num_kv_blocks(config: EngineConfig, model: ModelConfig, max_model_len: int, memory: Memory) -> int:
    """Blocks of the KV pool: num_blocks, or what kv_cache_memory_bytes holds, or else
    min(what max_num_seqs sequences of max_model_len could use, 25 % of the memory that weights and tables leave).

    A pool smaller than max_model_len is legal, with a warning: longer requests end when it is full. One that holds no
    block is an InvalidRequestError, and so is one that does not fit beside weights and tables.
    """
    pool = _pool(config, model, max_model_len, memory)
    _check_memory(config, model, max_model_len, max(1, pool.num_blocks), memory)
    if pool.num_blocks < 1:
        raise pool.too_small(config.block_size, f"one block of {config.block_size} tokens")
    if pool.num_tokens < max_model_len:
        logging.getLogger(__name__).warning(
            "The KV pool holds %d tokens, fewer than max_model_len = %d: requests that grow beyond it end early. "
            "For all of them it would need %d bytes; it has %d (%s). The largest max_model_len that fits is %d, which "
            "max_model_len=-1 takes by itself.",
            pool.num_tokens,
            max_model_len,
            -(-max_model_len // config.block_size) * config.block_size * pool.token_bytes,
            pool.have,
            pool.source,
            pool.num_tokens,
        )
    return pool.num_blocks


def num_host_blocks(
    config: EngineConfig, model: ModelConfig, max_model_len: int, num_blocks: int, memory: Memory
) -> int:
    """Blocks of host memory for swapped requests: what swap_space holds. Without one, min(what 4 GiB hold, what
    max_num_seqs sequences could use, 25 % of the free memory that the KV pool leaves).

    num_blocks: of the KV pool. A swap_space beyond the free memory that the pool leaves is an InvalidRequestError; 0 is
    legal: then every preempted request is recomputed.
    """
    if config.swap_space == 0:
        return 0
    block_bytes = config.block_size * model.kv_bytes_per_token(kv_dtype(config.kv_cache_dtype, config.dtype))
    left = max(0, memory.left(model, max_model_len) - num_blocks * block_bytes)
    if config.swap_space is None:
        per_sequence = min(num_blocks, -(-max_model_len // config.block_size))
        most = min(_DEFAULT_SWAP_SPACE * _GIB, left // _PARTS_OF_FREE_MEMORY)
        return min(most // block_bytes, config.max_num_seqs * per_sequence, _INT32_MAX)
    needed = int(config.swap_space * _GIB)
    if needed > left:
        raise InvalidRequestError(
            f"swap_space must fit into the memory that is left, got {config.swap_space} GiB: need {needed} bytes, have "
            f"{left} ({memory.free} free, less {memory.weights} for the weights, "
            f"{max_model_len * model.table_bytes_per_position} for the rotary tables and {num_blocks * block_bytes} "
            f"for the KV pool)"
        )
    return min(needed // block_bytes, _INT32_MAX)


@dataclass(frozen=True)
class _Pool:
    """A KV pool to be, and where its size comes from."""

    num_blocks: int
    block_size: int
    token_bytes: int
    have: int  # bytes
    source: str

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_size

    def too_small(self, num_tokens: int, what: str) -> InvalidRequestError:
        tokens = self.have // self.token_bytes
        fitting = f"{tokens} tokens would fit, in blocks of as many" if tokens else "not one token fits"
        return InvalidRequestError(
            f"the KV pool must hold at least {what}: need {num_tokens * self.token_bytes} bytes, have {self.have} "
            f"({self.source}); {fitting}. Give more kv_cache_memory_bytes, or a smaller block_size"
        )


def _check_memory(
    config: EngineConfig, model: ModelConfig, max_model_len: int, num_blocks: int, memory: Memory
) -> None:
    """That weights, tables and pool fit together. One error names them all."""
    token_bytes = model.kv_bytes_per_token(kv_dtype(config.kv_cache_dtype, config.dtype))
    block_bytes = config.block_size * token_bytes
    tables = max_model_len * model.table_bytes_per_position
    need = memory.weights + tables + num_blocks * block_bytes
    if need <= memory.free:
        return
    per_block = config.block_size * (token_bytes + model.table_bytes_per_position)
    longest = min(model.max_position_embeddings, memory.left(model, 0) // per_block * config.block_size)
    most = memory.left(model, max_model_len) // block_bytes
    fitting = "not one block fits beside weights and tables"
    if most:
        fitting = f"the largest num_blocks that fits is {most} (kv_cache_memory_bytes = {most * block_bytes})"
    if memory.weights >= memory.free:
        fitting = "the weights alone leave no room"
    if longest:
        fitting += f"; the largest max_model_len that fits, in as many blocks as it needs, is {longest}"
    raise InvalidRequestError(
        f"weights, tables and KV pool must fit into free memory: need {need} bytes ({memory.weights} for the weights, "
        f"{tables} for the rotary tables of max_model_len = {max_model_len}, {num_blocks * block_bytes} for the KV "
        f"pool of num_blocks = {num_blocks}), have {memory.free}; {fitting}"
    )


def _pool(config: EngineConfig, model: ModelConfig, max_model_len: int, memory: Memory) -> _Pool:
    token_bytes = model.kv_bytes_per_token(kv_dtype(config.kv_cache_dtype, config.dtype))
    block_bytes = config.block_size * token_bytes
    most = _INT32_MAX // config.block_size
    if config.num_blocks is not None:
        if config.num_blocks > most:
            raise InvalidRequestError(
                f"num_blocks must be at most {most} with block_size = {config.block_size}, got {config.num_blocks}"
            )
        have, source = config.num_blocks * block_bytes, f"num_blocks = {config.num_blocks}"
    elif config.kv_cache_memory_bytes is not None:
        have, source = config.kv_cache_memory_bytes, f"kv_cache_memory_bytes = {config.kv_cache_memory_bytes}"
    else:
        left = memory.left(model, max_model_len)
        have, source = left // _PARTS_OF_FREE_MEMORY, f"25 % of {left} free bytes"
        if max_model_len:
            most = min(most, config.max_num_seqs * -(-max_model_len // config.block_size))
    return _Pool(min(have // block_bytes, most), config.block_size, token_bytes, have, source)
