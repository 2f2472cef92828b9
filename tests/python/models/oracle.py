"""transformers in float32 against our own model code, both from one folder with a tiny random model.

A family's test file lists its cases and takes the tests from here:

    CASES = {"tied": Case(transformers.GPT2Config(...), ("no bias", "no learned positions"))}
    test_torch_ops_give..., test_the_graph_gives..., test_the_tolerance_sees... = family_tests(CASES)

TorchOps runs prompts side by side, in two chunks and then token by token; so does the worker, through the scheduler.
MISTAKES are op sets with a bug each: a test that is worth something sees those that concern its family.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from forced import greedy, scheduler_of
from isas import EVERY_ISA
from models.step_arrays import block_tables, step_arrays, two_chunks_then_decode

from fastpaged import _core
from fastpaged.config import EngineConfig
from fastpaged.ops.op_set import BatchInputs
from fastpaged.ops.torch_batch import TorchBatch
from fastpaged.ops.torch_ops import TorchOps
from fastpaged.weights.torch_weights import load_torch_model
from fastpaged.worker.worker import Worker

TOLERANCE = 1e-3  # of every logit, absolute; they have a deviation of one and more
SEEN = 1e-2  # a mistake that moves no logit by this much might hide in what is tolerated
BLOCK_SIZE = 4

Logits = npt.NDArray[np.float32]  # [positions, vocab]


@dataclass(frozen=True)
class Case:
    """A tiny configuration, and which of MISTAKES must be seen in its logits."""

    config: transformers.PretrainedConfig
    mistakes: tuple[str, ...]


@dataclass(frozen=True)
class TinyModel:
    """prompts: token ids. logits: those of transformers in float32, for every position of each prompt."""

    folder: Path
    prompts: list[list[int]]
    logits: list[Logits]


def tiny_model(
    folder: Path, config: transformers.PretrainedConfig, *, lengths: tuple[int, ...] = (37, 6, 21), seed: int = 0
) -> TinyModel:
    """Writes a random model as save_pretrained does, float32, and lets transformers compute it: by its own choice of
    attention, since the other ones are not always right (its eager Falcon adds ALiBi twice)."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomize(model)
    model.save_pretrained(folder)
    rng = np.random.default_rng(seed)
    vocab_size = config.get_text_config().vocab_size
    prompts = [[int(token) for token in rng.integers(0, vocab_size, length)] for length in lengths]
    return TinyModel(folder, prompts, transformers_logits(model, prompts))


def randomize(model: torch.nn.Module) -> None:
    """Weights under which each part of the model has a say: scores well apart, and no norm or bias that does nothing.

    What a fresh model has, deviations of 0.02 and norms of one, would hide almost every mistake.
    """
    model.eval()
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                noise = torch.randn_like(parameter)
                if parameter.dim() == 1:
                    parameter.copy_((0.0 if name == "bias" else parameter) + 0.3 * noise)
                elif isinstance(module, torch.nn.Embedding):
                    parameter.copy_(0.3 * noise)
                else:
                    is_conv1d = isinstance(module, transformers.pytorch_utils.Conv1D)
                    parameter.copy_(1.4 * noise / math.sqrt(parameter.shape[0 if is_conv1d else 1]))
        model.tie_weights()


def transformers_logits(model: Any, prompts: list[list[int]]) -> list[Logits]:
    """Each prompt by itself, whole: no cache, no company."""
    with torch.no_grad():
        return [model(torch.tensor([ids])).logits[0].float().numpy() for ids in prompts]


def torch_logits(folder: Path, prompts: list[list[int]], ops: type[TorchOps] = TorchOps) -> list[Logits]:
    """All prompts side by side through TorchOps. What no step has written is NaN in the cache."""
    lengths = [len(prompt) for prompt in prompts]
    model = load_torch_model(folder, dtype="float32", max_model_len=max(lengths))
    tables, num_blocks = block_tables(lengths, BLOCK_SIZE, seed=1)
    c = model.config
    shape = (num_blocks, c.num_layers, 2, c.num_kv_heads, BLOCK_SIZE, c.head_dim)
    kv_cache = torch.full(shape, torch.nan)
    rows: list[list[Logits]] = [[] for _ in prompts]
    for chunks in two_chunks_then_decode(lengths):
        batch = TorchBatch.of(step_arrays(chunks, prompts, tables, BLOCK_SIZE))
        with torch.no_grad():
            logits = model.forward(ops(batch, kv_cache), BatchInputs()).numpy()
        starts = batch.query_start.tolist()
        for i, chunk in enumerate(chunks):
            rows[chunk.sequence].append(logits[starts[i] : starts[i + 1]])
    return [np.concatenate(pieces) for pieces in rows]


def worker_logits(folder: Path, prompts: list[list[int]], isa: str, **settings: Any) -> list[Logits]:
    """All prompts through the recorded graph, with NaN in every free block.

    A step samples a prompt's last row only, so each beginning of the first half of a prompt is a request of one token;
    one more request has the rest of the prompt forced upon it as its answer. Longer ones are computed in chunks of 7.
    """
    longest = max(len(prompt) for prompt in prompts)
    config = EngineConfig(
        model=str(folder), isa=isa, num_threads=2, max_model_len=longest + 1, block_size=BLOCK_SIZE,
        num_blocks=(longest // BLOCK_SIZE + 1) * longest * len(prompts), long_prefill_token_threshold=7,
        **({"dtype": "float32"} | settings),
    )  # fmt: skip
    worker = Worker(config)
    try:
        return _forced(worker, config, prompts)
    finally:
        worker.close()


def _forced(worker: Worker, config: EngineConfig, prompts: list[list[int]]) -> list[Logits]:
    scheduler = scheduler_of(worker, config)
    builder = _core.BatchBuilder(scheduler)
    prompt_of: list[int] = []
    length_of: list[int] = []  # tokens known of each request, those forced upon it included
    for i, prompt in enumerate(prompts):
        half = -(-len(prompt) // 2)
        for begin in range(1, half + 1):
            num_outputs = len(prompt) - half + 1 if begin == half else 1
            scheduler.add(len(prompt_of), prompt[:begin], greedy(), num_outputs, [])
            prompt_of.append(i)
            length_of.append(begin)
    out = [np.full((len(prompt), worker.model_config.vocab_size), np.nan, np.float32) for prompt in prompts]
    while scheduler.has_unfinished():
        fill_with_nan(worker, scheduler.free_blocks())
        plan = scheduler.schedule()
        worker.execute(builder.build(plan))
        sampled = [group for group, first, count in plan.scheduled if first + count == length_of[group]]
        forced = []
        for group, logits in zip(sampled, worker.logits, strict=True):
            prompt, length = prompts[prompt_of[group]], length_of[group]
            out[prompt_of[group]][length - 1] = logits
            forced.append(prompt[length] if length < len(prompt) else 0)
            length_of[group] += 1
        scheduler.update_tokens(plan, forced)
    return out


def fill_with_nan(worker: Worker, blocks: Any) -> None:
    array = worker.kv_memory.array
    array[np.asarray(blocks, np.int64)] = 0x7FC0 if array.dtype == np.uint16 else np.nan


def distance(got: list[Logits], expected: list[Logits]) -> float:
    """The largest difference of any logit; NaN if there is one."""
    return float(np.max([np.abs(a - b).max() for a, b in zip(got, expected, strict=True)]))


def wrong(op: str, argument: str, value: Any) -> type[TorchOps]:
    """TorchOps with a bug: whenever `op` is called, `argument` is this, or what this function makes of it."""
    right = getattr(TorchOps, op)

    def call(self: TorchOps, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(right).bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments[argument]
        bound.arguments[argument] = value(given) if callable(value) else value
        return right(*bound.args, **bound.kwargs)

    return type("WrongOps", (TorchOps,), {op: call})


MISTAKES: dict[str, type[TorchOps]] = {
    "scores a tenth too large": wrong("attention", "scale", lambda scale: 1.1 * scale),
    "no rotation": wrong("attention", "rope", None),
    "a rotation a tenth too slow": wrong(
        "attention", "rope", lambda rope: rope[(torch.arange(len(rope)) * 0.9).long()]
    ),
    "no head norm": wrong("attention", "head_norm", None),
    "no window": wrong("attention", "window", 0),
    "a window one key too wide": wrong("attention", "window", lambda window: window + 1 if window else 0),
    "a window in every layer": wrong("attention", "window", lambda window: window or 8),
    "no soft cap of scores": wrong("attention", "soft_cap", 0.0),
    "no soft cap of logits": wrong("soft_cap", "cap", 1e6),
    "no slopes": wrong("attention", "alibi_slopes", None),
    "slopes of other heads": wrong("attention", "alibi_slopes", lambda slopes: slopes.flip(0)),
    "no bias": wrong("linear", "bias", None),
    "no norm bias": wrong("layer_norm", "bias", None),
    "no learned positions": wrong("embedding", "position_table", None),
    "positions two too early": wrong("embedding", "position_table", lambda table: table.roll(2, 0)),
    "embeddings not scaled": wrong("embedding", "scale", 1.0),
    "another gate": wrong("gated_linear", "kind", lambda kind: "relu" if kind == "silu" else "silu"),
    "another activation": wrong("linear", "activation", lambda kind: kind and ("silu" if kind == "relu" else "relu")),
    "gelu of the other kind": wrong(
        "linear", "activation", lambda kind: kind and ("gelu" if kind == "gelu_tanh" else "gelu_tanh")
    ),
}


def family_tests(cases: dict[str, Case]) -> tuple[Any, Any, Any]:
    """Tests of each case: TorchOps against transformers; the worker, on every op table; and that mistakes are seen."""
    made: dict[str, TinyModel] = {}
    torch.set_num_threads(1)  # more are slower with matrices as small as these

    def model_of(name: str, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
        if name not in made:
            made[name] = tiny_model(tmp_path_factory.mktemp("tiny"), cases[name].config)
        return made[name]

    @pytest.mark.parametrize("case", cases)
    def with_torch(case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
        model = model_of(case, tmp_path_factory)
        assert np.std(model.logits[0]) > 0.5, "logits so close to each other hide mistakes"
        assert distance(torch_logits(model.folder, model.prompts), model.logits) < TOLERANCE

    @pytest.mark.parametrize("isa", EVERY_ISA)
    @pytest.mark.parametrize("case", cases)
    def with_the_worker(case: str, isa: str, tmp_path_factory: pytest.TempPathFactory) -> None:
        model = model_of(case, tmp_path_factory)
        assert distance(worker_logits(model.folder, model.prompts, isa), model.logits) < TOLERANCE

    @pytest.mark.parametrize(("case", "mistake"), [(name, m) for name, case in cases.items() for m in case.mistakes])
    def mistaken(case: str, mistake: str, tmp_path_factory: pytest.TempPathFactory) -> None:
        model = model_of(case, tmp_path_factory)
        assert distance(torch_logits(model.folder, model.prompts, MISTAKES[mistake]), model.logits) > SEEN

    return with_torch, with_the_worker, mistaken
