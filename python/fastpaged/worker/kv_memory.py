"""The KV cache's memory, of the device and of the host."""

from __future__ import annotations

import mmap
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastpaged import _core
from fastpaged.config.dtypes import KV_SCALE_BYTES, kv_vector_bytes
from fastpaged.errors import InvalidRequestError
from fastpaged.worker.free_memory import free_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastpaged.config import KVDType, ModelConfig


_ELEMENTS: Mapping[KVDType, type[np.uint16 | np.float32]] = {"bfloat16": np.uint16, "float32": np.float32}
_TILE = 16  # slots
_MEASURED_BYTES = 2 << 20
# The code that is worth 1: times a scale, that.
_ONE: Mapping[KVDType, int] = {"fp8_e4m3": 0x38, "fp8_e5m2": 0x3C, "int8": 1}


class KVMemory:
    """The bytes of the pool and of the host blocks that swapped requests wait in, committed page by page when first
    written.

    On the CPU both are the same kind of memory. Host blocks are of use all the same: they are not the scheduler's to
    share out, so that what was computed survives its eviction from the pool; and swapping can be tested anywhere.

    array: [num_blocks, num_layers, 2 (K|V), num_kv_heads, block_size, head_dim], the bits of bfloat16 or float32. Of 8
        bits: bytes, uint8 [num_blocks, num_layers, 2 (K|V), num_kv_heads, block_size * (head_dim + 4)], in each of
        these, tile by tile, the codes of the tile's slots and then their float32 scales. A tile is 16 slots, or the
        whole block where that is no multiple of 16 (ops/kv_layout.h).
    host_array: the same, of num_host_blocks blocks.
    num_bytes_copied: so far, by kind of copy.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        model: ModelConfig,
        num_host_blocks: int = 0,
        dtype: KVDType = "bfloat16",
    ) -> None:
        self.dtype = dtype
        self._element: type[np.uint16 | np.float32 | np.uint8] = _ELEMENTS.get(dtype, np.uint8)
        self._tile = (_TILE if block_size % _TILE == 0 else block_size, model.head_dim)
        self._block_bytes = block_size * model.kv_bytes_per_token(dtype)
        piece: tuple[int, ...] = (block_size, model.head_dim)
        if dtype in _ONE:
            piece = (block_size * kv_vector_bytes(dtype, model.head_dim),)
        shape = (model.num_layers, 2, model.num_kv_heads, *piece)
        self.array = self._map(num_blocks, shape, "a KV pool", "num_blocks or kv_cache_memory_bytes")
        self.host_array = self._map(num_host_blocks, shape, "host memory", "swap_space")
        self.num_bytes_copied = {"swap_out": 0, "swap_in": 0, "copy_on_write": 0}

    @property
    def words(self) -> str:
        """What a line about an engine adds where keys and values are not in the dtype that computes them."""
        return f" in {self.dtype}" if self.dtype in _ONE else ""

    def copy(self, plan: _core.SchedulerOutput) -> int:
        """Runs the plan's copies, in order; returns their bytes. Releases the GIL."""
        num_bytes = _core.copy_blocks(plan, self.array, self.host_array)
        if num_bytes:
            for kind, _, _, num_blocks in plan.copies:
                self.num_bytes_copied[kind] += num_blocks * self._block_bytes
        return num_bytes

    def fill_blocks(self, block_ids: Sequence[int] | npt.NDArray[np.int32], value: float) -> None:
        """Every K and V of these blocks becomes `value`, truncated to bfloat16 where that is what is kept; tests fill
        free blocks with NaN. Of 8 bits it is the scales that are `value`."""
        self._fill(self.array, block_ids, value)

    def fill_host_blocks(self, block_ids: Sequence[int] | npt.NDArray[np.int32], value: float) -> None:
        """The same for blocks of the host."""
        self._fill(self.host_array, block_ids, value)

    @property
    def block_bytes(self) -> int:
        """Of one block, on either tier."""
        return self._block_bytes

    def seconds_per_block(self) -> tuple[float, float]:
        """What moving a block out to the host takes here, and in again: measured over at most a few MB, whose pages
        are committed by that. REQUIRES: nothing is kept in either memory yet. (0, 0) without host blocks."""
        num_bytes = min(self.array.nbytes, self.host_array.nbytes, _MEASURED_BYTES)
        if num_bytes == 0:
            return 0.0, 0.0
        device, host = (memory.reshape(-1).view(np.uint8)[:num_bytes] for memory in (self.array, self.host_array))
        device[:] = 0  # pages that nobody has written are all the same one
        host[:] = device
        times = []
        for source, destination in ((device, host), (host, device)):
            begin = time.perf_counter()
            destination[:] = source
            times.append((time.perf_counter() - begin) * self._block_bytes / num_bytes)
        return times[0], times[1]

    def codes_and_scales(self, blocks: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
        """Views of blocks as they are kept in 8 bits, of array, of host_array or like theirs: the same but for the last
        axis, [..., tiles, slots of a tile * head_dim] and [..., tiles, slots of a tile]. REQUIRES: 8 bits, C order."""
        slots, head_dim = self._tile
        tiles = blocks.reshape(*blocks.shape[:-1], -1, slots * (head_dim + KV_SCALE_BYTES))
        return tiles[..., : slots * head_dim], tiles[..., slots * head_dim :].view(np.float32)

    def _fill(self, array: npt.NDArray[Any], block_ids: Sequence[int] | npt.NDArray[np.int32], value: float) -> None:
        blocks = np.asarray(block_ids, np.int64)
        if self.dtype not in _ONE:
            array[blocks] = self._bits(np.array(value, np.float32))
            return
        codes, scales = self.codes_and_scales(array)
        codes[blocks] = _ONE[self.dtype]
        scales[blocks] = value

    def _bits(self, wide: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        return wide if self._element is np.float32 else (wide.view(np.uint32) >> 16).astype(np.uint16)

    def _map(self, num_blocks: int, shape: tuple[int, ...], what: str, settings: str) -> npt.NDArray[Any]:
        if num_blocks == 0:
            return np.empty((0, *shape), self._element)
        num_bytes = num_blocks * self._block_bytes
        try:
            memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:
            free_bytes = free_memory_bytes()
            raise InvalidRequestError(
                f"{what} of {num_blocks} blocks needs {num_bytes} bytes, which the system refuses ({error}); it has "
                f"{free_bytes} free, room for {free_bytes // self._block_bytes} blocks. Give a smaller {settings}"
            ) from None
        return np.frombuffer(memory, self._element).reshape((num_blocks, *shape))
