"""The C++ core. Arrays cross through the buffer protocol; bfloat16 travels as its bits in uint16 arrays.

Argument errors raise ValueError naming the argument; a broken invariant raises RuntimeError.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from fastpaged._core_machine import MachineLimits as MachineLimits
from fastpaged._core_machine import MatrixProbe as MatrixProbe
from fastpaged._core_machine import OpTime as OpTime
from fastpaged._core_machine import matrix_dtypes as matrix_dtypes
from fastpaged._core_machine import measure_read as measure_read
from fastpaged._core_plan import Batch as Batch
from fastpaged._core_plan import EventKind as EventKind
from fastpaged._core_plan import FinishReason as FinishReason
from fastpaged._core_plan import PreemptionCosts as PreemptionCosts
from fastpaged._core_plan import Quarantine as Quarantine
from fastpaged._core_plan import RequestCost as RequestCost
from fastpaged._core_plan import SamplingParams as SamplingParams
from fastpaged._core_plan import SchedulerOutput as SchedulerOutput
from fastpaged._core_plan import SchedulerPolicy as SchedulerPolicy
from fastpaged._core_plan import SchedulerStats as SchedulerStats
from fastpaged._core_plan import SequenceEvent as SequenceEvent
from fastpaged._core_plan import StepEvents as StepEvents
from fastpaged._core_snapshot import BlockBill as BlockBill
from fastpaged._core_snapshot import CacheEvent as CacheEvent
from fastpaged._core_snapshot import KVSnapshot as KVSnapshot
from fastpaged._core_snapshot import PinnedPrefix as PinnedPrefix
from fastpaged._core_snapshot import PinUse as PinUse
from fastpaged._core_snapshot import RequestUse as RequestUse
from fastpaged._core_snapshot import SlotSplit as SlotSplit
from fastpaged._core_snapshot import TierUse as TierUse

__version__: str

# ---- device (bind_device.cc)

def known_isas() -> list[str]: ...
def supported_isas() -> list[str]: ...
def default_isa() -> str:
    """FASTPAGED_ISA, or the best this CPU has. Raises ValueError for an unsupported FASTPAGED_ISA."""

def available_cpus() -> int:
    """CPUs this process may use: affinity mask and cgroup quota, at least 1."""

class CpuDevice:
    """One op table and one thread pool. Everything made from it keeps it alive."""

    def __init__(self, isa: str, num_threads: int) -> None: ...
    isa: Final[str]
    weight_layout: Final[str]  # devices of the same one pack a weight into the same bytes
    num_threads: Final[int]

# ---- weights (bind_weights.cc)

Activations = npt.NDArray[np.uint16] | npt.NDArray[np.float32]  # in an activation dtype: bfloat16 bits, or float32
Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]

class PackedLinear:
    """The weight [out_features, in_features] of a linear layer, in one op table's layout. As a buffer: its bytes."""

    def __init__(
        self, device: CpuDevice, parts: Sequence[Activations], dtype: str = "bfloat16", gated: bool = False
    ) -> None:
        """Stacks parts [N_i, K] along N, packed as dtype, "bfloat16" or "float32". gated: N/2 gates, then N/2 ups."""
    @staticmethod
    def from_packed(
        device: CpuDevice, data: npt.NDArray[np.uint8], *, out_features: int, in_features: int, dtype: str, gated: bool
    ) -> PackedLinear:
        """What was packed before, by a device of the same weight_layout; data, its packed_bytes, are not copied."""
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def out_features(self) -> int: ...
    @property
    def in_features(self) -> int: ...
    @property
    def dtype(self) -> str:
        """Of the elements, and so of the activations it takes."""
    @property
    def gated(self) -> bool: ...
    @property
    def num_bytes(self) -> int: ...

def packed_bytes(device: CpuDevice, *, out_features: int, in_features: int, dtype: str, gated: bool) -> int:
    """How many bytes the device packs a weight of this size into, padding included."""

def dequantize(
    device: CpuDevice, kind: str, data: npt.NDArray[np.uint8], out: npt.NDArray[np.uint16] | npt.NDArray[np.float32]
) -> None:
    """GGUF blocks of `kind` ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
    to out, bfloat16 bits or float32; sizes must match."""

# ---- ops, one by one, for tests and benchmarks (bind_ops.cc, bind_attention_ops.cc): each takes a CpuDevice and the
# arrays of its params; Activations are of one dtype in each call

def embedding(
    device: CpuDevice,
    token_ids: Ints,
    table: Activations,
    out: Floats,
    positions: Ints | None = None,
    position_table: Floats | None = None,
    scale: float = 1.0,
) -> None: ...
def rms_norm(
    device: CpuDevice, x: Floats, residual: Floats | None, weight: Floats, eps: float, out: Activations
) -> None: ...
def layer_norm(
    device: CpuDevice,
    x: Floats,
    residual: Floats | None,
    weight: Floats,
    bias: Floats | None,
    eps: float,
    out: Activations,
) -> None: ...
def linear(
    device: CpuDevice,
    x: Activations,
    weight: PackedLinear,
    out: Activations,
    bias: Floats | None = None,
    activation: str | None = None,
    adds: bool = False,
) -> None:
    """out: float32; with an activation in x's dtype, of a gated weight half as wide. adds: out += instead of out =."""

def rotary_cache_write(
    device: CpuDevice,
    qkv: Floats,
    positions: Ints | None,
    slot_mapping: Ints,
    cos_sin: Floats | None,
    kv_cache: Activations | Bytes,
    q: Activations,
    q_norm: Floats | None = None,
    k_norm: Floats | None = None,
    norm_eps: float = 0.0,
    kv_cache_dtype: str = "auto",
) -> None:
    """kv_cache: [num_blocks, 2, num_kv_heads, block_size, head_dim], of an 8-bit kv_cache_dtype as bytes
    [num_blocks, 2, num_kv_heads, block_size * (head_dim + 4)]."""

def paged_attention(
    device: CpuDevice,
    q: Activations,
    kv_cache: Activations | Bytes,
    query_start: Ints,
    context_lens: Ints,
    block_tables: Ints,
    out: Activations,
    scale: float,
    soft_cap: float = 0.0,
    window: int = 0,
    alibi_slopes: Floats | None = None,
    kv_cache_dtype: str = "auto",
) -> None:
    """kv_cache: as rotary_cache_write."""

def soft_cap(device: CpuDevice, x: Floats, cap: float) -> None: ...
def add(device: CpuDevice, x: Floats, y: Floats) -> None: ...
def gather_rows(device: CpuDevice, x: Floats, rows: Ints, out: Floats) -> None: ...

# ---- graph (bind_graph.cc)

class ModelGraph:
    """A model's forward pass: recorded once, run every step in C++. Its Activations are all of `dtype`."""

    def __init__(self, device: CpuDevice, dtype: str = "bfloat16") -> None:
        """dtype: "bfloat16" or "float32", of what feeds the linear layers, of their weights and of the KV cache."""
    def buffer(self, rows: str, cols: int, dtype: str) -> int:
        """rows "tokens" or "samples"; dtype "float32" or the graph's."""
    def embedding(
        self, table: Activations, out: int, position_table: Floats | None = None, scale: float = 1.0
    ) -> None: ...
    def rms_norm(self, x: int, residual: int | None, weight: Floats, eps: float, out: int) -> None: ...
    def layer_norm(
        self, x: int, residual: int | None, weight: Floats, bias: Floats | None, eps: float, out: int
    ) -> None: ...
    def linear(
        self, x: int, weight: PackedLinear, out: int, bias: Floats | None = None, activation: str | None = None
    ) -> None: ...
    def rotary_cache_write(
        self,
        qkv: int,
        layer: int,
        q: int,
        *,
        num_kv_heads: int,
        head_dim: int,
        cos_sin: Floats | None = None,
        q_norm: Floats | None = None,
        k_norm: Floats | None = None,
        norm_eps: float = 0.0,
    ) -> None: ...
    def paged_attention(
        self,
        q: int,
        layer: int,
        out: int,
        *,
        scale: float,
        soft_cap: float = 0.0,
        window: int = 0,
        alibi_slopes: Floats | None = None,
    ) -> None: ...
    def soft_cap(self, x: int, cap: float) -> None:
        """In place."""
    def add(self, x: int, y: int) -> None:
        """x += y, in place: by the last node, if that is the linear that computes y. Then y is not there."""
    def gather_rows(self, x: int, out: int) -> None: ...
    def finalize(self, output: int, max_num_tokens: int, max_num_samples: int) -> None: ...
    def bind_kv_cache(self, kv_cache: Activations | Bytes, kv_cache_dtype: str = "auto") -> None:
        """[num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim] of the graph's dtype; of "fp8_e4m3",
        "fp8_e5m2" or "int8" bytes [num_blocks, num_layers, 2, num_kv_heads, block_size * (head_dim + 4)]."""
    def start(self, thread: StepThread, sampler: Sampler, batch: Batch) -> None:
        """Has the thread run the batch and sample its rows; returns at once."""
    def run(self, batch: Batch) -> None:
        """Releases the GIL."""
    def describe(self) -> str:
        """One line per node, with its buffers."""
    def check_invariants(self) -> None: ...
    @property
    def dtype(self) -> str: ...
    def time_ops(self, limits: MachineLimits | None = None) -> None:
        """From now on every run counts its ops, anew, with their time and what the limits allow."""
    @property
    def op_times(self) -> list[OpTime]:
        """Since time_ops(), in the order of their first calls; empty before it."""
    @property
    def runs_limit_seconds(self) -> float:
        """What the limits allow whole runs, added up since time_ops(): of each the time of its weights and KV from
        memory or of its arithmetic, whichever is longer."""
    @property
    def num_nodes_run(self) -> int:
        """Ops that have run, over all runs. Any thread may ask, in the middle of one too."""
    @property
    def arena_bytes(self) -> int: ...
    @property
    def output(self) -> npt.NDArray[np.float32]:
        """[num_samples, vocab] logits of the last run: a view, overwritten by the next run."""

# ---- what the scheduler takes and gives (bind_plan.cc; more of it in _core_plan.pyi)

def copy_blocks(plan: SchedulerOutput, device: Activations | Bytes, host: Activations | Bytes) -> int:
    """Runs the plan's copies in order between the memory of the two tiers; returns the bytes copied. Releases the GIL.

    device, host: of one dtype, writable, C-contiguous, the block as the first axis, with the same bytes per block. Not
    looked at if the plan has no copies.
    """

# ---- scheduler (bind_scheduler.cc)

class Scheduler:
    """Not thread-safe: one call at a time, though some release the GIL.

    num_waiting, num_running and num_swapped count requests; num_blocks and num_free_blocks, cached ones included, are
    the device's. num_logical_blocks: entries in the block tables of running requests, which hold num_held_blocks: the
    rest is what sharing saves.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        max_num_rows: int = 0,
        num_host_blocks: int = 0,
        policy: SchedulerPolicy | None = None,
        prefix_caching: bool = False,
        max_pinned_blocks: int = 0,
        prefix_hash_mask: int = ...,
        costs: PreemptionCosts | None = None,
        host_prefix_tier: bool = False,
        max_cache_events: int = 0,
    ) -> None:
        """max_num_rows: of logits in one step, at least max_num_seqs; prompts whose logprobs are wanted go in chunks
        of the rows above it, each beside one of its own. 0 is no limit.
        prefix_hash_mask: for tests, the bits that count of the hashes by which the prefix cache finds blocks.
        max_cache_events: kept until they are taken; 0: none."""
    def add(
        self,
        group_id: int,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        max_tokens: int,
        stop_token_ids: Sequence[int],
        num_samples: int = 1,
        cache_root: str = "",
        skip_prefix_cache: bool = False,
        priority: int = 0,
        deadline_ns: int = ...,
        queue_deadline_ns: int = ...,
    ) -> None:
        """cache_root: cached blocks are shared among requests of the same one alone. skip_prefix_cache: takes nothing
        from the prefix cache; others may still take what it computes.
        num_samples: answers drawn independently, each a branch once the prompt is computed; sample i draws with
        mix_seed(seed, i)."""
    def abort(self, group_id: int) -> bool:
        """Ends a request in any state and frees its blocks at once. False if it is not (or no longer) here."""
    def finish(self, group_id: int, sequence_id: int) -> bool:
        """Ends one branch the same way, and with the last one its request."""
    def finish_beams(self, group_id: int, sequence_ids: Sequence[int]) -> bool:
        """These live beams become hypotheses as they are; then it is asked whether their search is over. With
        has_stop_strings due after each update() with live beams, if only with no id. False if none of them is here."""
    def fork(self, group_id: int, sequence_id: int) -> int:
        """A new branch that shares this one's blocks; its sequence id. Between update() and schedule(), of a request
        that runs, whose samples have parted, and that has one token left to compute in each branch."""
    def preempt(self, group_id: int, mode: str) -> bool:
        """The next schedule() preempts this request first, if it runs then; mode as in SchedulerPolicy. It may come
        back in the same step. False if it is not here."""
    def reset(self) -> None:
        """Ends every request at once, with no event. What is cached or pinned stays so."""
    def pin(self, pin_id: int, token_ids: Sequence[int], cache_root: str = "") -> int:
        """Holds the cached blocks that these tokens fill, and those to come, until unpin(); returns how many it holds
        by now. ValueError, naming need and have, beyond max_pinned_blocks; so for tokens that fill no block."""
    def unpin(self, pin_id: int) -> bool:
        """False if it is not here."""
    def pins(self) -> list[PinnedPrefix]:
        """In order of id."""
    def reset_prefix_cache(self) -> None:
        """Nothing is cached any more, nor will be what is computed already. Requests go on; pins stay, and hold
        nothing."""
    def set_costs(self, costs: PreemptionCosts) -> None:
        """For preemption_mode "auto", from now on."""
    def schedule(self, now_ns: int = ...) -> SchedulerOutput:
        """now_ns: the time by the clock that deadlines are given in; it must not go back, and stands still where it is
        not given.

        A plan that was never updated is planned anew, and requests whose blocks it copied are recomputed. Releases
        the GIL."""
    def update(self, plan: SchedulerOutput, result: SamplerOutput) -> StepEvents:
        """Events of this step: first the sequences that ended while planning, then one per sequence with a row of
        logits, or per draw where samples part, less those gone since. Releases the GIL."""
    def update_tokens(self, plan: SchedulerOutput, token_ids: Sequence[int | None]) -> list[SequenceEvent]:
        """update() with tokens from elsewhere, plan.num_results of them; None for a row whose logits held a NaN. The
        token of a row that scores the prompt is not looked at."""
    def update_rows(
        self,
        plan: SchedulerOutput,
        token_ids: Sequence[int],
        failed_rows: Sequence[int] = ...,
        candidates: Sequence[Sequence[tuple[int, float]]] = ...,
    ) -> StepEvents:
        """The same where there may be beams. candidates: (token, logprob) of each row, best first; none if there are no
        beams."""
    def cached_blocks(self) -> tuple[Ints, Ints, Ints]:
        """What the prefix cache has, in order of block: blocks [n], parents [n], tokens [n, block_size]. A parent is a
        block, or a root: -1, -2, ..."""
    def has_unfinished(self) -> bool: ...
    num_waiting: Final[int]
    num_running: Final[int]
    num_swapped: Final[int]
    num_blocks: Final[int]
    num_free_blocks: Final[int]
    num_host_blocks: Final[int]
    num_free_host_blocks: Final[int]
    def free_blocks(self) -> npt.NDArray[np.int32]: ...  # that hold nothing, in the order they would be taken in
    def cached_free_blocks(self) -> npt.NDArray[np.int32]: ...  # that the prefix cache would lose next, in that order
    num_logical_blocks: Final[int]
    num_held_blocks: Final[int]
    def free_host_blocks(self) -> npt.NDArray[np.int32]: ...
    def cached_free_host_blocks(self) -> npt.NDArray[np.int32]: ...
    num_cached_host_blocks: Final[int]
    @property
    def stats(self) -> SchedulerStats:
        """As they are now: a copy."""
    def sequences(self, group_id: int) -> list[int]:
        """Sequence ids of a request's branches, the oldest first."""
    def num_preemptions(self, group_id: int) -> int: ...
    def snapshot(self) -> KVSnapshot:
        """Read off the tables now. Releases the GIL."""
    def slot_splits(self) -> tuple[SlotSplit, SlotSplit]:
        """The snapshot's of device and host, alone."""
    def take_cache_events(self) -> tuple[list[CacheEvent], int]:
        """Those since the last time, and how many older ones were dropped beyond max_cache_events."""
    max_cache_events: Final[int]
    def request_cost(self, group_id: int) -> RequestCost:
        """Also of one that has ended, at least until the update() after the one that has said so; else nothing."""
    def quarantine(self) -> Quarantine:
        """After a broken invariant: fails those it concerns, drops the plan. If nothing is wrong, nothing changes."""
    num_quarantined_blocks: Final[int]
    def _give_back_too_early(self, group_id: int) -> None:
        """For tests: breaks an invariant. The request's last block is given back, and it goes on listing it."""
    def check_invariants(self) -> None: ...
    def check_references(self) -> None:
        """The part of it that costs no more than a glance at every block: who holds it, and what its count says."""

class BatchBuilder:
    def __init__(self, scheduler: Scheduler) -> None: ...
    def build(self, plan: SchedulerOutput) -> Batch:
        """Releases the GIL."""

# ---- sampling (bind_sampling.cc)

class SamplerOutput:
    """A row for each score and each draw, plan.num_results in all. Read-only numpy copies, one property each."""

    token_ids: Final[npt.NDArray[np.int32]]
    ok: Final[npt.NDArray[np.bool_]]
    logprobs: Final[npt.NDArray[np.float32]]
    ranks: Final[npt.NDArray[np.int32]]
    def top_logprobs(self, row: int) -> list[tuple[int, float]]:
        """(token_id, logprob), best first; empty unless the request asked."""
    def scores(self, first_row: int, num_rows: int) -> tuple[Floats, Ints, Ints, Ints, Floats]:
        """(logprobs [n], ranks [n], top_offsets [n + 1], top_ids, top_logprobs) of n rows that follow one another: the
        alternatives of the i-th of them are top_ids[top_offsets[i] : top_offsets[i + 1]], best first."""

class StepThread:
    """Carries out one step at a time beside the caller: ModelGraph.start() begins it; finish() waits for it, without
    the GIL, and returns what it sampled or raises what it raised. In a forked child both are a RuntimeError."""

    def finish(self) -> SamplerOutput: ...

class Sampler:
    def __init__(self, device: CpuDevice) -> None: ...
    def sample(self, logits: npt.NDArray[np.float32], batch: Batch) -> SamplerOutput:
        """Uses the sampling params the builder kept beside the batch. Releases the GIL."""
    def sample_rows(
        self,
        logits: npt.NDArray[np.float32],
        params: Sequence[SamplingParams],
        positions: Sequence[int],
        histories: Sequence[tuple[Sequence[int], Sequence[int]]] | None = None,
        given: Sequence[int | None] | None = None,
        rows: Sequence[int] | None = None,
        sample_indices: Sequence[int] | None = None,
    ) -> SamplerOutput:
        """The same for requests of no batch: params and position of each, the tokens before it, prompt and output, the
        token whose logprobs are wanted, with num_prompt_logprobs alternatives (None to sample one), the row of logits
        it looks at, by default that of its own place, and which of a request's samples it is. Releases the GIL."""

def mix_seed(seed: int, sample_index: int) -> int:
    """The seed of a request's sample: a request of its own with that seed draws the same. Sample 0 has the request's
    own."""
