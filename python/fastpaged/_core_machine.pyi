"""What fastpaged._core has of this machine (bind_machine.cc). Only for readers and type checkers: no module of this
name exists at run time."""

from typing import Final

import numpy as np
import numpy.typing as npt

from fastpaged._core import CpuDevice

def measure_read(
    device: CpuDevice, buffer: npt.NDArray[np.uint8], *, piece_bytes: int, num_passes: int = 1
) -> tuple[float, float]:
    """(bytes, seconds) of reading each piece of the buffer num_passes times, each by one of the threads. Releases the
    GIL."""

def matrix_dtypes(isa: str) -> list[str]:
    """What the table called isa multiplies without widening it: "float32", and maybe "bfloat16" before it."""

class MatrixProbe:
    """Multiplies on all threads of a device, as its linear layers do at best.

    weight_bytes: what each thread streams from its cache again and again; 0: operands stay in registers.
    """

    def __init__(self, device: CpuDevice, dtype: str, *, weight_bytes: int) -> None: ...
    def measure(self, num_passes: int) -> tuple[float, float]:
        """(flops, seconds). Releases the GIL."""

class MachineLimits:
    """What all threads of a run reach together, in bytes and flops per second; 0: not known, and no limit.

    cache_rate: of caches that threads have to themselves, which hold cache_bytes together; shared_cache_rate: of what
    does not fit there.
    """

    def __init__(
        self,
        *,
        memory_rate: float,
        cache_rate: float,
        shared_cache_rate: float,
        cache_bytes: int,
        flop_rate: float,
    ) -> None: ...
    memory_rate: Final[float]
    cache_rate: Final[float]
    shared_cache_rate: Final[float]
    cache_bytes: Final[int]
    flop_rate: Final[float]
    def seconds(self, *, memory_bytes: int = 0, activation_bytes: int = 0, flops: int = 0) -> float:
        """What one call that moves and computes so much takes at the least: the slowest of the three."""

class OpTime:
    """All calls of an op that are alike: linear layers of one shape, attention with one window, any other op.

    Bytes and flops are those that the op needs, whoever computes it; limit_seconds is what the limits allow, by call.
    """

    op: Final[str]
    label: Final[str]
    calls: Final[int]
    seconds: Final[float]
    weight_bytes: Final[int]
    kv_bytes: Final[int]
    activation_bytes: Final[int]
    flops: Final[int]
    limit_seconds: Final[float]
