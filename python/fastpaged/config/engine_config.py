"""How an engine is set up: frozen, and validated once, here."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastpaged.config.dtypes import KV_CODES, checked_dtype, compute_dtype
from fastpaged.errors import InvalidRequestError
from fastpaged.param_checks import is_one_of, refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class EngineConfig:
    """How one engine runs one model. Every bad value is an InvalidRequestError naming the argument."""

    model: str  # a .gguf file, a model folder, or a name (org/name)
    dtype: str = "auto"  # of weights and activations: "bfloat16" or "float32"; "auto": bfloat16
    kv_cache_dtype: str = "auto"  # "fp8_e4m3" (also "fp8"), "fp8_e5m2" or "int8"; "auto": the same as dtype
    max_model_len: int | None = None  # tokens of prompt and answer; None: what the model was trained for; -1: what fits
    block_size: int = 16  # tokens per KV block
    num_blocks: int | None = None  # of the KV pool; None: sized from kv_cache_memory_bytes or free memory
    kv_cache_memory_bytes: int | None = None
    swap_space: float | None = None  # GiB of host memory for swapped requests; None: 4, or what is there and of use
    preemption_mode: str = "auto"  # what becomes of a request when blocks run out: see PREEMPTION_MODES; None: "auto"
    resume_grace_steps: int = 8  # steps for which a request that came back after a preemption keeps its blocks; 0: none
    max_num_seqs: int = 256  # sequences in one step
    max_num_batched_tokens: int = 2048  # tokens in one step
    long_prefill_token_threshold: int = 0  # most tokens of one sequence in one step; 0: no limit
    prefill_share: int = 512  # most tokens of unfinished prompts in a step that others have a part in; 0: no limit
    scheduling_policy: str = "fcfs"  # in order of arrival; "priority": of the requests' priorities, then of arrival
    ageing_steps: int = 512  # with "priority": who has been in line for so many steps goes first; 0: nobody ages
    queue_timeout: float | None = None  # seconds after which a request that was never let in ends; None: never
    max_num_queued_requests: int | None = None  # that have not been let in yet; one more is refused; None: no limit
    max_num_queued_tokens: int | None = None  # of their prompts, together; a prompt that waits alone may have more
    seed: int = 0  # requests without a seed draw theirs from it
    max_logprobs: int = 20  # most alternatives a request may ask for; -1: the whole vocabulary
    num_threads: int | None = None  # None: the CPUs this process may use
    watermark: float = 0.01  # share of the KV pool that letting a request in leaves free
    enable_prefix_caching: bool = True  # KV blocks of a prompt that begins as an earlier one are found, not computed
    pinned_prefix_budget: float = 0.25  # share of the KV pool that pinned prefixes may hold
    kv_events: bool = False  # keep events of the prefix cache, for kv_events() to drain
    tokenizer: str | None = None  # where another one than the model's is: a file, folder or name, as for model
    skip_tokenizer_init: bool = False  # no tokenizer: token ids in, token ids out
    revision: str | None = None  # branch, tag or commit of a model on the hub; None: its main branch
    tokenizer_revision: str | None = None  # the same of `tokenizer`; None: revision, where both are one repository
    hf_token: str | bool | None = field(default=None, repr=False)  # None or True: as logged in; False: none
    download_dir: str | None = None  # where repositories of the hub are kept; None: HF_HOME's folder
    load_format: str = "auto"  # "safetensors" or "gguf": no other; "dummy": random weights, from config.json alone
    hf_overrides: Mapping[str, object] = field(default_factory=dict, hash=False)  # laid over config.json
    generation_config: str = "auto"  # defaults of sampling: the model's; "fastpaged" or "vllm": ours; or a folder's
    override_generation_config: Mapping[str, object] = field(default_factory=dict, hash=False)  # laid over these
    served_model_name: str | Sequence[str] | None = None  # what clients of a server call it; None: model
    async_scheduling: bool = False  # make a step's outputs while the next one is computed: of use with cores to spare
    stream_interval: int = 1  # tokens from one output of a request to the next, beside the first and the last
    packed_cache: bool = True  # keep packed weights on disk and map them at the next start; see FASTPAGED_CACHE
    disable_log_stats: bool = True  # count nothing for LLMEngine.stats; a server counts
    fault_trace_dir: str | None = None  # where a step that fails is written down; None: a folder for temporary files
    record: str | None = None  # a file to write all to that the scheduler is told and decides: `fastpaged replay`
    isa: str | None = None  # name of an op table; None: FASTPAGED_ISA, or the best this CPU has

    def __post_init__(self) -> None:
        for name in ("model", "tokenizer", "download_dir", "generation_config", "record", "fault_trace_dir"):
            if isinstance(getattr(self, name), os.PathLike):
                object.__setattr__(self, name, os.fspath(getattr(self, name)))
        if not isinstance(self.model, str) or not self.model:
            raise InvalidRequestError(
                f"model must be the path of a .gguf file or a model folder, or a name on the hub (org/name), "
                f"got {self.model!r}"
            )
        self._check_source()
        self._check_dtypes()
        for name, (low, high) in _ENGINE_RANGES.items():
            value = getattr(self, name)
            is_auto_fit = name == "max_model_len" and type(value) is int and value == -1
            if is_auto_fit or (value is None and name in _OPTIONAL):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                none = ("None, -1 or " if name == "max_model_len" else "None or ") if name in _OPTIONAL else ""
                raise InvalidRequestError(f"{name} must be {none}an integer from {low} to {high}, got {value!r}")
        if self.num_blocks is not None and self.kv_cache_memory_bytes is not None:
            raise InvalidRequestError(
                f"num_blocks and kv_cache_memory_bytes both size the KV pool: give one, "
                f"got {self.num_blocks} and {self.kv_cache_memory_bytes}"
            )
        self._check_preemption()
        self._check_queue()
        if not _is_number(self.watermark) or not 0 <= self.watermark < 1:
            raise refusal("watermark", self.watermark, "a number in [0, 1)")
        if not _is_number(self.pinned_prefix_budget) or not 0 <= self.pinned_prefix_budget <= 1:
            raise refusal("pinned_prefix_budget", self.pinned_prefix_budget, "a number in [0, 1]")
        if self.isa is not None and not isinstance(self.isa, str):
            raise InvalidRequestError(f"isa must be None or the name of an op table, got {self.isa!r}")

    @property
    def max_num_rows(self) -> int:
        """Rows of logits in one step: one for each sequence, and more for prompts whose logprobs are wanted."""
        return min(self.max_num_seqs + min(_ROWS_FOR_PROMPTS, self.max_num_batched_tokens), _INT32_MAX)

    def _check_source(self) -> None:
        """Where model and tokenizer come from, and what is laid over their files."""
        for name in ("tokenizer", "revision", "tokenizer_revision", "download_dir", "record", "fault_trace_dir"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise refusal(name, value, "None or a non-empty string")
        if not isinstance(self.hf_token, (str, bool, type(None))):  # never shown: it is a secret
            raise refusal("hf_token", type(self.hf_token), "None, True, False or a string")
        for name in (
            "skip_tokenizer_init",
            "packed_cache",
            "async_scheduling",
            "enable_prefix_caching",
            "kv_events",
            "disable_log_stats",
        ):
            if not isinstance(getattr(self, name), bool):
                raise refusal(name, getattr(self, name), "True or False")
        if self.skip_tokenizer_init and self.tokenizer is not None:
            raise refusal("tokenizer", self.tokenizer, "None when skip_tokenizer_init is True")
        if not is_one_of(self.load_format, LOAD_FORMATS):
            why = "of pickled weights and other formats, none is ever read"
            raise refusal("load_format", self.load_format, f"{' or '.join(map(repr, LOAD_FORMATS))} ({why})")
        if not isinstance(self.generation_config, str) or not self.generation_config:
            raise refusal("generation_config", self.generation_config, "'auto', 'fastpaged', 'vllm' or a folder")
        for name in ("hf_overrides", "override_generation_config"):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise refusal(name, value, "a dict of names and values")
        names = self.served_model_name
        listed = [names] if isinstance(names, str) else [] if names is None else names
        if not isinstance(listed, (list, tuple)) or not all(isinstance(name, str) and name for name in listed):
            raise refusal("served_model_name", names, "None, a non-empty string, or a list of them")

    def _check_dtypes(self) -> None:
        dtype = checked_dtype("dtype", self.dtype)
        object.__setattr__(self, "dtype", dtype)
        cache_dtype = checked_dtype("kv_cache_dtype", self.kv_cache_dtype)
        if cache_dtype not in (*KV_CODES, "auto", compute_dtype(dtype)):
            meaning = f", which is {compute_dtype(dtype)!r}" if dtype == "auto" else ""
            codes = ", ".join(map(repr, KV_CODES))
            raise InvalidRequestError(
                f"kv_cache_dtype must be 'auto', {codes} or the same as dtype = {dtype!r}{meaning}: keys and values "
                f"are kept in 8 bits, or in the dtype that computes them, got {self.kv_cache_dtype!r}"
            )
        object.__setattr__(self, "kv_cache_dtype", cache_dtype)

    def _check_preemption(self) -> None:
        space = self.swap_space
        if space is not None and not (_is_number(space) and 0 <= space <= _MAX_SWAP_SPACE):  # also refuses NaN
            raise InvalidRequestError(
                f"swap_space must be None or a number of GiB from 0 to {_MAX_SWAP_SPACE}, got {reprlib.repr(space)}"
            )
        mode: object = self.preemption_mode
        if mode is None:
            object.__setattr__(self, "preemption_mode", "auto")
        elif not is_one_of(mode, PREEMPTION_MODES):
            raise refusal("preemption_mode", mode, f"{_listed(PREEMPTION_MODES)} or None")

    def _check_queue(self) -> None:
        if not is_one_of(self.scheduling_policy, SCHEDULING_POLICIES):
            raise refusal("scheduling_policy", self.scheduling_policy, _listed(SCHEDULING_POLICIES))
        if self.queue_timeout is not None and not (_is_number(self.queue_timeout) and self.queue_timeout > 0):
            raise refusal("queue_timeout", self.queue_timeout, "None or a number of seconds > 0")


def _listed(values: Sequence[str]) -> str:
    return " or ".join(map(repr, values))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


LOAD_FORMATS = ("auto", "safetensors", "gguf", "dummy")
# What is cheaper for this request here and now; computing it again; swapping it to host memory, where that has room; or
# the paper's rule, by which a request of several sequences is swapped and one of a single sequence recomputed.
PREEMPTION_MODES = ("auto", "recompute", "swap", "by_branches")
SCHEDULING_POLICIES = ("fcfs", "priority")
_ROWS_FOR_PROMPTS = 63  # with its own row a prompt goes in chunks of 64: of a vocabulary of 256k, 64 MiB
_MAX_SWAP_SPACE = 2**33 - 1  # GiB: below 2**63 bytes
_OPTIONAL = (
    "max_model_len", "num_blocks", "kv_cache_memory_bytes", "num_threads", "max_num_queued_requests",
    "max_num_queued_tokens",
)  # fmt: skip
_ENGINE_RANGES = {
    "max_model_len": (2, _INT32_MAX),
    "block_size": (1, 256),
    "num_blocks": (1, _INT32_MAX),
    "kv_cache_memory_bytes": (1, 2**63 - 1),
    "max_num_seqs": (1, _INT32_MAX),
    "max_num_batched_tokens": (1, 2**20),
    "long_prefill_token_threshold": (0, _INT32_MAX),
    "prefill_share": (0, _INT32_MAX),
    "resume_grace_steps": (0, _INT32_MAX),
    "ageing_steps": (0, _INT32_MAX),
    "max_num_queued_requests": (1, _INT32_MAX),
    "max_num_queued_tokens": (1, 2**63 - 1),
    "seed": (0, 2**64 - 1),
    "max_logprobs": (-1, _INT32_MAX),
    "stream_interval": (1, _INT32_MAX),
    "num_threads": (1, 1024),
}
