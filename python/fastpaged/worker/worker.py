"""Worker: a model on this process's CPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastpaged import _core
from fastpaged.config.dtypes import KV_CODES, compute_dtype, kv_dtype
from fastpaged.errors import InvalidRequestError, ModelFormatError
from fastpaged.ops.graph_ops import GraphOps
from fastpaged.ops.op_set import BatchInputs
from fastpaged.start_up import StartUp
from fastpaged.weights.checkpoint import Checkpoint, open_checkpoint, read_config
from fastpaged.weights.dummy import DummyCheckpoint
from fastpaged.weights.loader import load_model, weight_bytes
from fastpaged.weights.packed_cache import PackedCache
from fastpaged.weights.packed_weights import PackedWeights
from fastpaged.worker.free_memory import free_memory_bytes
from fastpaged.worker.kv_memory import KVMemory
from fastpaged.worker.kv_sizing import Memory, fitted_max_model_len, num_host_blocks, num_kv_blocks

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from fastpaged.config import DType, EngineConfig, ModelConfig
    from fastpaged.models.registry import Model
    from fastpaged.progress import ProgressCallback


_MAX_HEAD_DIM = 256


class Worker:
    """One device with its weights, its KV memory and its recorded model.

    Raises ModelNotFoundError, ModelFormatError, or ValueError for a bad config.
    """

    def __init__(
        self, config: EngineConfig, progress: ProgressCallback | None = None, start_up: StartUp | None = None
    ) -> None:
        start_up = StartUp() if start_up is None else start_up
        self.device = _cpu_device(config)
        self.dtype = compute_dtype(config.dtype)
        with start_up.phase("opening the model"):
            checkpoint = _open(config)
        try:
            self.model_config: ModelConfig = checkpoint.config
            _check_head_dim(config, self.model_config)
            self._size_kv_memory(config)
            with start_up.phase("loading weights"):
                packed = _packed_weights(config, checkpoint, self.device, self.dtype)
                model = load_model(
                    checkpoint,
                    self.device,
                    progress,
                    dtype=self.dtype,
                    max_model_len=self.max_model_len,
                    packed=packed,
                )
        finally:
            checkpoint.close()
        kept = kv_dtype(config.kv_cache_dtype, self.dtype)
        with start_up.phase("mapping KV memory"):
            self.kv_memory = KVMemory(self.num_blocks, config.block_size, self.model_config, self.num_host_blocks, kept)
        with start_up.phase("recording the graph"):
            self.graph = _record(model, self.device, self.dtype, config)
            self.graph.bind_kv_cache(self.kv_memory.array, kept if kept in KV_CODES else "auto")
        self._sampler = _core.Sampler(self.device)
        self._thread = _core.StepThread() if config.async_scheduling else None
        self._cache_writer = None if packed is None else packed.write_later()

    def _size_kv_memory(self, config: EngineConfig) -> None:
        """Before the weights are loaded, so that what cannot fit is said at once."""
        model = self.model_config
        memory = Memory(free_memory_bytes(), weight_bytes(model, self.dtype))
        self.max_model_len = fitted_max_model_len(config, model, memory)
        self.num_blocks = num_kv_blocks(config, model, self.max_model_len, memory)
        self.num_host_blocks = num_host_blocks(config, model, self.max_model_len, self.num_blocks, memory)

    def copy(self, plan: _core.SchedulerOutput) -> int:
        """Moves the KV blocks that the plan moves, before its batch is executed; the bytes moved. Releases the GIL."""
        return self.kv_memory.copy(plan)

    def execute(self, batch: _core.Batch) -> _core.SamplerOutput:
        """Computes the batch and samples its rows. Releases the GIL."""
        self.graph.run(batch)
        return self.sample(batch)

    def sample(self, batch: _core.Batch) -> _core.SamplerOutput:
        """Samples the rows of the batch that the graph has just run. Releases the GIL."""
        return self._sampler.sample(self.graph.output, batch)

    def start(self, batch: _core.Batch) -> None:
        """Begins to execute the batch, and returns: its arrays stay as they are until finish(). Copies of blocks that
        it needs have been made. REQUIRES: config.async_scheduling; what was started before is finished."""
        assert self._thread is not None
        self.graph.start(self._thread, self._sampler, batch)

    def finish(self) -> _core.SamplerOutput:
        """Waits for what was started; raises what it raised. Releases the GIL."""
        assert self._thread is not None
        return self._thread.finish()

    @property
    def num_ops_run(self) -> int:
        """Ops of forward passes that have ended, ever; 0 when it is closed. Any thread may ask, while one is computed
        too."""
        graph = getattr(self, "graph", None)
        return 0 if graph is None else graph.num_nodes_run

    @property
    def block_bytes(self) -> int:
        """Of one KV block, on either tier."""
        return self.kv_memory.block_bytes

    def seconds_per_block(self) -> tuple[float, float]:
        """Of copies out to the host and in again, as measured now. REQUIRES: nothing was computed yet."""
        return self.kv_memory.seconds_per_block()

    @property
    def logits(self) -> npt.NDArray[np.float32]:
        """[num_samples, vocab_size] of the last batch: a view, overwritten by the next one."""
        return self.graph.output

    @property
    def is_keeping_weights(self) -> bool:
        """Whether packed weights are still to be written for the next start: close() would wait for that."""
        return self._cache_writer is not None and not self._cache_writer.has_ended

    def keep_no_weights(self) -> None:
        """Leaves no packed weights for the next start, unless they are written already. Idempotent."""
        if self._cache_writer is not None:
            self._cache_writer.cancel()

    def close(self) -> None:
        """Frees weights and KV memory (arrays taken from kv_memory keep that alive), once what was started is finished
        and packed weights that are to be kept for the next start are written. Ctrl-C meanwhile keeps none, and frees
        all the same. Idempotent; no use after it."""
        try:
            if self._cache_writer is not None:
                self._cache_writer.close()
        finally:
            for name in ("_thread", "graph", "kv_memory", "_sampler"):
                self.__dict__.pop(name, None)


def _open(config: EngineConfig) -> Checkpoint:
    if config.load_format == "dummy":
        return DummyCheckpoint(config.model, read_config(Path(config.model), config.hf_overrides))
    return open_checkpoint(config.model, load_format=config.load_format, overrides=config.hf_overrides)


def _packed_weights(
    config: EngineConfig, checkpoint: Checkpoint, device: _core.CpuDevice, dtype: DType
) -> PackedWeights | None:
    """None where there is nothing to keep, or nowhere to keep it."""
    cache = PackedCache.from_environment() if config.packed_cache and config.load_format != "dummy" else None
    return None if cache is None else PackedWeights(cache, checkpoint, device, dtype)


def _cpu_device(config: EngineConfig) -> _core.CpuDevice:
    num_threads = _core.available_cpus() if config.num_threads is None else config.num_threads
    try:
        return _core.CpuDevice(_core.default_isa() if config.isa is None else config.isa, num_threads)
    except ValueError as error:  # names isa or FASTPAGED_ISA, and what is supported
        raise InvalidRequestError(str(error)) from None


def _check_head_dim(config: EngineConfig, model: ModelConfig) -> None:
    if model.head_dim % 16 or model.head_dim > _MAX_HEAD_DIM:
        raise ModelFormatError(
            f"{config.model}: head_dim must be a multiple of 16, at most {_MAX_HEAD_DIM}, for the kernels there are, "
            f"got {model.head_dim}"
        )


def _record(model: Model[Any], device: _core.CpuDevice, dtype: DType, config: EngineConfig) -> _core.ModelGraph:
    """The forward pass as a graph, for as many tokens and samples as one step may have."""
    graph = _core.ModelGraph(device, dtype)
    op = GraphOps(graph)
    logits = model.forward(op, BatchInputs())
    try:
        op.finalize(
            logits,
            max_num_tokens=config.max_num_batched_tokens,
            max_num_samples=min(config.max_num_rows, config.max_num_batched_tokens),
        )
    except MemoryError:
        raise InvalidRequestError(
            "max_num_batched_tokens and max_num_seqs must leave room for a step's activations, got "
            f"{config.max_num_batched_tokens} and {config.max_num_seqs}, more than this machine's memory"
        ) from None
    return graph
