"""Several samples of one prompt, with the real sampler: sample i is what a request of its own with that seed gives."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastpaged import _core
from fastpaged.config import EngineConfig
from fastpaged.executor.in_process import InProcessExecutor
from fastpaged.worker.worker import Worker

SEED = 2**63 + 5
VOCAB_SIZE = 300
# What was said of each token: itself, its logprob's bits, its rank, and its alternatives with theirs.
Answer = list[tuple[int, bytes, int, tuple[int, ...], bytes]]

PARAMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "filtered, with logprobs": {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "num_logprobs": 3},
    "looking back": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "bad_words": [[7]], "num_logprobs": 0},
    "with prompt logprobs": {"num_prompt_logprobs": 1, "num_logprobs": 1},
}


def sampling_params(seed: int, **changes: Any) -> _core.SamplingParams:
    values = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": seed, "num_logprobs": None}
    return _core.SamplingParams(**(values | changes))


class Bench:
    """A small model, and a scheduler that has it compute."""

    def __init__(self, model: Path, **changes: Any) -> None:
        values: dict[str, Any] = {
            "max_model_len": 128, "block_size": 4, "num_blocks": 100, "num_threads": 1, "isa": _core.default_isa(),
            "max_num_batched_tokens": 64, "max_num_seqs": 16, "swap_space": 0.01,
        }  # fmt: skip
        config = EngineConfig(model=str(model), **(values | changes))
        self.worker = Worker(config)
        self.scheduler = _core.Scheduler(
            num_blocks=self.worker.num_blocks,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=self.worker.max_model_len,
            max_num_rows=config.max_num_rows,
            num_host_blocks=self.worker.num_host_blocks,
        )
        self._executor = InProcessExecutor(self.worker, _core.BatchBuilder(self.scheduler))
        self.answers: defaultdict[tuple[int, int], Answer] = defaultdict(list)  # by request and sample
        self.scores: dict[int, list[bytes]] = defaultdict(list)  # of the prompt, by request

    def step(self) -> _core.SchedulerOutput:
        memory = self.worker.kv_memory
        memory.fill_blocks(self.scheduler.free_blocks(), float("nan"))
        memory.fill_host_blocks(self.scheduler.free_host_blocks(), float("nan"))
        plan = self.scheduler.schedule()
        result = self._executor.run(plan)
        assert len(result.token_ids) == plan.num_results
        for event in self.scheduler.update(plan, result):
            if event.score_rows is not None:
                self.scores[event.group_id] += [part.tobytes() for part in result.scores(*event.score_rows)]
            if event.sample_row is not None:
                self.answers[event.group_id, event.branch].append(self._said(result, event.sample_row))
        self.scheduler.check_invariants()
        return plan

    @staticmethod
    def _said(result: _core.SamplerOutput, row: int) -> tuple[int, bytes, int, tuple[int, ...], bytes]:
        logprobs, ranks, _, top_ids, top_logprobs = result.scores(row, 1)
        return (
            int(result.token_ids[row]), logprobs.tobytes(), int(ranks[0]), tuple(top_ids.tolist()),
            top_logprobs.tobytes(),
        )  # fmt: skip

    def drain(self) -> None:
        while self.scheduler.has_unfinished():
            self.step()
        assert self.scheduler.num_free_blocks == self.scheduler.num_blocks


def alone(model: Path, prompt: list[int], num_tokens: int, seed: int, **params: Any) -> tuple[Answer, list[bytes]]:
    bench = Bench(model)
    bench.scheduler.add(1, prompt, sampling_params(seed, **params), num_tokens, [])
    bench.drain()
    return bench.answers[1, 0], bench.scores[1]


@pytest.mark.parametrize("named", PARAMS)
@pytest.mark.parametrize("prompt_tokens", [1, 8, 27])  # in the middle of a block and at its end
def test_each_of_eight_samples_is_a_single_request_with_its_seed(
    tiny_llama: Path, named: str, prompt_tokens: int
) -> None:
    prompt = [random.Random(i).randrange(VOCAB_SIZE) for i in range(prompt_tokens)]
    expected = [alone(tiny_llama, prompt, 12, _core.mix_seed(SEED, i), **PARAMS[named]) for i in range(8)]
    assert len({tuple(entry[0] for entry in answer) for answer, _ in expected}) == 8
    for changes in ({}, {"max_num_batched_tokens": 9}, {"block_size": 16}, {"block_size": 3, "num_threads": 2}):
        bench = Bench(tiny_llama, **changes)
        bench.scheduler.add(5, [3, 1, 2], sampling_params(9), 20, [])
        bench.scheduler.add(6, prompt, sampling_params(SEED, **PARAMS[named]), 12, [], num_samples=8)
        bench.drain()
        assert [bench.answers[6, i] for i in range(8)] == [answer for answer, _ in expected]
        if changes.get("max_num_batched_tokens") is None:
            assert bench.scores[6] == expected[0][1], "the prompt's logprobs come once"


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preemption_before_and_after_samples_part_changes_no_bit(tiny_llama: Path, mode: str) -> None:
    prompt = [random.Random(i).randrange(VOCAB_SIZE) for i in range(21)]
    params = PARAMS["filtered, with logprobs"]
    expected = [alone(tiny_llama, prompt, 15, _core.mix_seed(SEED, i), **params)[0] for i in range(5)]
    for seed in range(4):
        rng = random.Random(seed)
        bench = Bench(tiny_llama, max_num_batched_tokens=8)
        bench.scheduler.add(1, prompt, sampling_params(SEED, **params), 15, [], num_samples=5)
        bench.step()
        forced = {0: 0, 1: 0}  # while the samples are one, and afterwards
        while bench.scheduler.has_unfinished():
            parted = int(len(bench.scheduler.sequences(1)) > 1)
            if forced[parted] < 1 + parted and rng.random() < 0.5:
                bench.scheduler.preempt(1, mode)
                forced[parted] += 1
            bench.step()
        assert sum(forced.values()) > 1
        assert [bench.answers[1, i] for i in range(5)] == expected


def test_all_samples_draw_their_first_token_from_one_row_of_logits(tiny_llama: Path) -> None:
    bench = Bench(tiny_llama)
    bench.scheduler.add(1, [5, 6, 7], sampling_params(SEED), 3, [], num_samples=6)
    plan = bench.step()
    assert (plan.num_tokens, plan.num_samples, plan.num_rows, plan.num_results) == (3, 1, 1, 6)
    assert bench.worker.logits.shape[0] == 1
    assert len(bench.scheduler.sequences(1)) == 6
    plan = bench.step()
    assert (plan.num_tokens, plan.num_samples, plan.num_rows, plan.num_results) == (6, 6, 6, 6)


def test_events_name_the_sample_and_whom_it_grew_from() -> None:
    scheduler = _core.Scheduler(num_blocks=8, block_size=4, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=16)
    scheduler.add(3, [1, 2], sampling_params(0), 9, [5], num_samples=3)
    (root,) = scheduler.sequences(3)
    events = scheduler.update_tokens(scheduler.schedule(), [8, 5, 9])
    assert [event.branch for event in events] == [0, 1, 2]
    assert [event.parent_id for event in events] == [root] * 3
    assert [event.finish_reason for event in events] == [None, _core.FinishReason.STOP, None]
    assert scheduler.sequences(3) == [root, events[2].sequence_id]
    events = scheduler.update_tokens(scheduler.schedule(), [8, 9])
    assert [event.branch for event in events] == [0, 2]
    assert [event.parent_id for event in events] == scheduler.sequences(3)


def test_more_samples_than_can_run_together_are_refused() -> None:
    scheduler = _core.Scheduler(num_blocks=8, block_size=4, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=16)
    with pytest.raises(ValueError, match="num_samples must be <= max_num_seqs = 4 and <= max_num_batched_tokens = 16"):
        scheduler.add(1, [1], sampling_params(0), 9, [], num_samples=5)
    with pytest.raises(ValueError, match="num_samples must be >= 1, got 0"):
        scheduler.add(1, [1], sampling_params(0), 9, [], num_samples=0)
    assert not scheduler.has_unfinished()


def test_the_seeds_of_samples_are_hashed_and_begin_with_the_requests_own() -> None:
    seeds = [_core.mix_seed(seed, i) for seed in (1, 2, 3, 2**64 - 1) for i in range(8)]
    assert seeds[::8] == [1, 2, 3, 2**64 - 1]
    assert len(set(seeds)) == len(seeds)
    for seed, index in ((-1, 0), (2**64, 0), (0, -1)):
        with pytest.raises(ValueError, match="seed" if index == 0 else "sample_index"):
            _core.mix_seed(seed, index)


def test_requests_of_no_batch_may_share_a_row_and_number_their_samples() -> None:
    sampler = _core.Sampler(_core.CpuDevice("scalar", 1))
    logits = np.zeros((2, 500), np.float32)
    logits[1, 7] = 100.0
    params = [sampling_params(SEED)] * 4
    drawn = sampler.sample_rows(logits, params, [3] * 4, rows=[0, 0, 1, 0], sample_indices=[0, 1, 2, 1]).token_ids
    assert drawn[2] == 7
    assert drawn[1] == drawn[3] != drawn[0]
    single = sampler.sample_rows(logits[:1], [sampling_params(_core.mix_seed(SEED, 1))], [3]).token_ids
    assert single.tolist() == [drawn[1]]
    with pytest.raises(ValueError, match="row must be one of the 2 rows of logits, from 0 on, got 2"):
        sampler.sample_rows(logits, params[:1], [3], rows=[2])
    with pytest.raises(ValueError, match="rows must have one entry per params, got 1 for 2"):
        sampler.sample_rows(logits, params[:2], [3] * 2, rows=[1])
    with pytest.raises(ValueError, match="logits must have 1 rows, got 2"):
        sampler.sample_rows(logits, params[:1], [3])
