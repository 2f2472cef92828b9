"""Beam search through scheduler, batches and sampler: hypotheses and scores are those of transformers' own search."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from core.beam_oracle import VOCAB_SIZE, Hypotheses, Search, hypotheses_of_transformers, logits_of
from core.toy_model import ToyModel

from fastpaged import _core


def sampling_params(search: Search) -> _core.SamplingParams:
    return _core.SamplingParams(
        temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, num_logprobs=None, min_tokens=search.min_tokens,
        repetition_penalty=search.repetition_penalty, logit_bias=search.logit_bias,
        allowed_token_ids=search.allowed_token_ids, end_token_ids=search.end_token_ids, beam_width=search.width,
        length_penalty=search.length_penalty, early_stopping=search.early_stopping,
        num_candidates=max(2, 1 + len(search.end_token_ids)) * search.width,
    )  # fmt: skip


class BeamEngine:
    """Scheduler and sampler around the table, and what the events tell of each search."""

    def __init__(self, **changes: Any) -> None:
        sizes: dict[str, Any] = {
            "num_blocks": 300, "block_size": 4, "max_num_seqs": 32, "max_num_batched_tokens": 64, "max_model_len": 100,
            "num_host_blocks": 100,
        }  # fmt: skip
        sizes |= changes
        self.scheduler = _core.Scheduler(**sizes)
        self._builder = _core.BatchBuilder(self.scheduler)
        self._sampler = _core.Sampler(_core.CpuDevice("scalar", 1))
        self._memory = ToyModel(sizes["num_blocks"], sizes["block_size"], sizes["num_host_blocks"])
        self._tokens: dict[int, list[int]] = {}  # that a beam or hypothesis has generated
        self.answers: defaultdict[int, Hypotheses] = defaultdict(list)

    def add(self, request_id: int, search: Search) -> None:
        self.scheduler.add(request_id, search.prompt, sampling_params(search), search.max_tokens, search.end_token_ids)

    def step(self) -> None:
        plan = self.scheduler.schedule()
        self._memory.copy(plan.copies)
        self._memory.poison(self.scheduler.free_blocks(), self.scheduler.free_host_blocks())
        batch = self._builder.build(plan)
        rows = [logits_of(context) for _, context in self._memory.compute(batch)]
        logits = np.stack(rows) if rows else np.zeros((0, VOCAB_SIZE), np.float32)
        self._hear(list(self.scheduler.update(plan, self._sampler.sample(logits, batch))))
        self.scheduler.check_invariants()

    def _hear(self, events: Sequence[_core.SequenceEvent]) -> None:
        grown: dict[int, list[int]] = {}
        for event in events:
            if event.kind == _core.EventKind.RESULT:
                continue
            assert event.token_id is not None
            grown[event.sequence_id] = [*self._tokens.get(event.parent_id, []), event.token_id]
            if event.kind == _core.EventKind.HYPOTHESIS:
                assert event.finish_reason in {_core.FinishReason.STOP, _core.FinishReason.LENGTH}
            else:
                assert event.kind == _core.EventKind.BEAM
        self._tokens |= grown
        for event in events:
            if event.kind == _core.EventKind.RESULT:
                assert event.branch == len(self.answers[event.group_id])
                self.answers[event.group_id].append((self._tokens[event.sequence_id], event.score))

    def run(self) -> None:
        while self.scheduler.has_unfinished():
            self.step()


def random_search(choose: random.Random, width: int) -> Search:
    prompt = [choose.randrange(VOCAB_SIZE) for _ in range(choose.randint(1, 9))]
    return Search(
        prompt,
        width,
        max_tokens=choose.randint(1, 14),
        length_penalty=choose.choice((-1.0, 0.0, 0.6, 1.0, 1.4)),
        early_stopping=choose.choice((False, True, "never")),
        end_token_ids=choose.sample(range(VOCAB_SIZE), choose.choice((0, 1, 1, 3))),
    )


def edited_search(choose: random.Random, width: int) -> Search:
    return replace(
        random_search(choose, width),
        min_tokens=choose.randint(0, 6),
        repetition_penalty=choose.choice((1.0, 1.2, 0.8)),
        logit_bias={choose.randrange(VOCAB_SIZE): choose.uniform(-2.0, 2.0) for _ in range(choose.randint(0, 3))},
        allowed_token_ids=choose.choice((None, sorted(choose.sample(range(VOCAB_SIZE), 30)))),
    )


def searched(searches: Sequence[Search], **changes: Any) -> BeamEngine:
    engine = BeamEngine(**changes)
    for request_id, search in enumerate(searches):
        engine.add(request_id, search)
    engine.run()
    assert engine.scheduler.num_free_blocks == engine.scheduler.num_blocks
    return engine


@pytest.mark.parametrize("kind", [random_search, edited_search])
@pytest.mark.parametrize("width", [2, 3, 4, 6])
def test_hypotheses_and_scores_are_those_of_transformers(
    kind: Callable[[random.Random, int], Search], width: int
) -> None:
    choose = random.Random(width)
    searches = [kind(choose, width) for _ in range(15)]
    engine = searched(searches)
    for request_id, search in enumerate(searches):
        found, expected = engine.answers[request_id], hypotheses_of_transformers(search)
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected], search
        np.testing.assert_allclose([score for _, score in found], [score for _, score in expected], atol=1e-4)


def test_a_search_finds_the_same_to_the_bit_whatever_room_there_is_and_whoever_takes_it() -> None:
    choose = random.Random(7)
    searches = [edited_search(choose, choose.randint(1, 6)) for _ in range(24)]
    alone = [searched([search]).answers[0] for search in searches]
    for mode in ("swap", "recompute"):
        for sizes in ({"num_blocks": 40, "block_size": 4}, {"num_blocks": 100, "block_size": 1}):
            for budget in (6, 64):
                policy = _core.SchedulerPolicy(preemption_mode=mode)
                engine = searched(
                    searches, policy=policy, max_num_batched_tokens=budget, prefix_caching=budget == 64, **sizes
                )
                assert engine.scheduler.stats.num_preemptions > 0 or budget == 6
                assert [engine.answers[request_id] for request_id in range(len(searches))] == alone
