"""A worker as the engine sees it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forced import greedy, last_logits, scheduler_of
from tiny_model import tiny_config, tiny_weights, write_json, write_safetensors, write_tiny_llama

from fastpaged import _core
from fastpaged.config import EngineConfig
from fastpaged.errors import InvalidRequestError, ModelFormatError, ModelNotFoundError
from fastpaged.executor.in_process import InProcessExecutor
from fastpaged.worker.worker import Worker

PROMPT = [7, 120, 3, 255, 18]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("worker"), tokenizer=False)


def settings(model: Path, **changes: Any) -> EngineConfig:
    values: dict[str, Any] = {"model": str(model), "isa": "scalar", "num_threads": 1, "num_blocks": 20}
    return EngineConfig(**(values | changes))


def test_the_context_is_the_models_unless_a_shorter_one_is_asked_for(model: Path) -> None:
    assert Worker(settings(model)).max_model_len == 512
    assert Worker(settings(model, max_model_len=40)).max_model_len == 40
    with pytest.raises(InvalidRequestError, match="max_model_len must be at most 512.*, got 513"):
        Worker(settings(model, max_model_len=513))
    assert Worker(settings(model, max_model_len=-1, num_blocks=5)).max_model_len == 80


def test_what_cannot_fit_is_said_before_a_weight_is_loaded(model: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    with pytest.raises(InvalidRequestError, match="the KV pool must hold at least one block of 16 tokens: need"):
        Worker(settings(model, num_blocks=None, kv_cache_memory_bytes=1), lambda *call: calls.append(call))
    assert calls == []


def test_a_model_that_cannot_fit_is_refused_before_a_weight_is_loaded(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastpaged.worker.worker.free_memory_bytes", lambda: 30_000)
    calls: list[tuple[str, int, int]] = []
    for changes in ({}, {"num_blocks": None}, {"num_blocks": None, "max_model_len": -1}):
        with pytest.raises(InvalidRequestError, match=r"for the weights, .* rotary tables .* have 30000; the weights"):
            Worker(settings(model, **changes), lambda *call: calls.append(call))
    assert calls == []


@pytest.mark.parametrize(("dtype", "element"), [("auto", np.uint16), ("bfloat16", np.uint16), ("float32", np.float32)])
def test_the_kv_cache_is_kept_in_the_dtype_of_the_model(model: Path, dtype: str, element: type) -> None:
    worker = Worker(settings(model, dtype=dtype, swap_space=0.001))
    assert worker.kv_memory.array.dtype == worker.kv_memory.host_array.dtype == element


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kv_cache_dtype", ["fp8_e4m3", "fp8_e5m2", "int8"])
def test_the_kv_cache_may_be_kept_in_8_bits_whatever_computes(model: Path, kv_cache_dtype: str, dtype: str) -> None:
    config = settings(model, dtype=dtype, kv_cache_dtype=kv_cache_dtype, swap_space=0.001)
    worker = Worker(config)
    assert worker.kv_memory.array.shape[-1] == 16 * (16 + 4)
    assert worker.num_host_blocks == int(0.001 * 2**30) // worker.kv_memory.array[0].nbytes
    logits = last_logits(worker, config, [PROMPT])
    close = last_logits(Worker(settings(model, dtype=dtype)), settings(model, dtype=dtype), [PROMPT])
    assert 0 < np.abs(logits - close).max() < 0.2 * np.abs(close).max()


def test_the_device_is_as_asked_for(model: Path) -> None:
    worker = Worker(settings(model, num_threads=3))
    assert (worker.device.isa, worker.device.num_threads, worker.num_blocks) == ("scalar", 3, 20)


def test_an_op_table_nobody_knows_is_refused_by_name(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequestError, match=r"sse9.*scalar"):
        Worker(settings(model, isa="sse9"))
    monkeypatch.setenv("FASTPAGED_ISA", "sse9")
    with pytest.raises(InvalidRequestError, match=r"sse9.*scalar"):
        Worker(settings(model, isa=None))
    monkeypatch.setenv("FASTPAGED_ISA", "scalar")
    assert Worker(settings(model, isa=None)).device.isa == "scalar"


def test_a_model_that_is_not_there_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        Worker(settings(tmp_path / "nowhere"))


@pytest.mark.parametrize("head_dim", [8, 24, 272])
def test_heads_that_no_kernel_serves_are_refused_before_anything_is_loaded(head_dim: int, tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", tiny_config() | {"head_dim": head_dim})
    write_safetensors(tmp_path / "model.safetensors", tiny_weights())
    with pytest.raises(ModelFormatError, match=f"head_dim must be a multiple of 16, at most 256, .* got {head_dim}"):
        Worker(settings(tmp_path))


def test_progress_is_reported(model: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    Worker(settings(model), lambda *call: calls.append(call))
    assert calls[-1] == ("loading weights", 21, 21)


def test_a_plan_is_run_and_sampled_greedily_from_its_logits(model: Path) -> None:
    config = settings(model)
    worker = Worker(config)
    scheduler = scheduler_of(worker, config)
    executor = InProcessExecutor(worker, _core.BatchBuilder(scheduler))
    scheduler.add(0, PROMPT, greedy(), 3, [])
    scheduler.add(1, PROMPT[:2], greedy(), 3, [])
    for num_tokens in (7, 2, 2):
        plan = scheduler.schedule()
        assert plan.num_tokens == num_tokens
        result = executor.run(plan)
        assert worker.logits.shape == (2, 300)
        np.testing.assert_array_equal(result.token_ids, worker.logits.argmax(axis=1))
        scheduler.update(plan, result)
    assert not scheduler.has_unfinished()
    executor.close()


def test_a_step_that_samples_nothing_has_no_logits(model: Path) -> None:
    config = settings(model, long_prefill_token_threshold=3)
    worker = Worker(config)
    scheduler = scheduler_of(worker, config)
    scheduler.add(0, PROMPT, greedy(), 1, [])
    result = worker.execute(_core.BatchBuilder(scheduler).build(scheduler.schedule()))
    assert worker.logits.shape == (0, 300)
    assert len(result.token_ids) == 0


def test_the_graph_is_sized_by_the_token_budget(model: Path) -> None:
    sizes = []
    for budget in (1, 1024, 2048, 3072):  # from 1024 on, rows end where buffers are aligned
        graph = Worker(settings(model, max_num_batched_tokens=budget, max_num_seqs=1)).graph
        graph.check_invariants()
        sizes.append(graph.arena_bytes)
    assert sizes[0] < 16 << 10
    assert 0 < sizes[2] - sizes[1] == sizes[3] - sizes[2]  # so much for each token, and no more


def test_a_budget_of_one_token_and_one_sequence_still_answers(model: Path) -> None:
    tight, loose = settings(model, max_num_batched_tokens=1, max_num_seqs=1), settings(model)
    prompts = [PROMPT, PROMPT[:1]]
    expected = last_logits(Worker(loose), loose, prompts)
    assert last_logits(Worker(tight), tight, prompts).tobytes() == expected.tobytes()


def test_logits_taken_from_a_worker_outlive_it(model: Path) -> None:
    config = settings(model)
    worker = Worker(config)
    scheduler = scheduler_of(worker, config)
    scheduler.add(0, PROMPT, greedy(), 1, [])
    worker.execute(_core.BatchBuilder(scheduler).build(scheduler.schedule()))
    logits = worker.logits
    kept = logits.copy()
    worker.close()
    worker.close()
    del worker
    gc.collect()
    assert logits.any()
    np.testing.assert_array_equal(logits, kept)
