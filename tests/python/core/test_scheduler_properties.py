"""Any sequence of wishes through the bindings: each request is answered as if alone, and no block is lost."""

from __future__ import annotations

from core.toy_model import VOCAB_SIZE, PlainAnswer, ToyModel, answer_plainly
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fastpaged._core import BatchBuilder, SamplingParams, Scheduler, SchedulerOutput

TOKENS = st.integers(0, VOCAB_SIZE - 1)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(1, 10),
        block_size=st.sampled_from([1, 2, 3, 4, 16]),
        max_num_seqs=st.integers(1, 5),
        max_num_batched_tokens=st.integers(1, 12),
        max_model_len=st.integers(2, 30),
        long_prefill_token_threshold=st.integers(0, 4),
    )
    def start(self, **config: int) -> None:
        self.config = config
        self.scheduler = Scheduler(**config)
        self.builder = BatchBuilder(self.scheduler)
        self.model = ToyModel(config["num_blocks"], config["block_size"])
        self.num_slots = config["num_blocks"] * config["block_size"]
        self.last_id = 0
        self.expected: dict[int, PlainAnswer] = {}  # unfinished requests
        self.heard: dict[int, list[int]] = {}
        self.prompts: dict[int, int] = {}
        self.max_tokens: dict[int, int] = {}

    @rule(data=st.data(), max_tokens=st.integers(1, 20), stops=st.lists(TOKENS, max_size=2))
    def add(self, data: st.DataObject, max_tokens: int, stops: list[int]) -> None:
        longest = min(self.config["max_model_len"] - 1, self.num_slots)
        prompt = data.draw(st.lists(TOKENS, min_size=1, max_size=longest), label="prompt")
        self.last_id += 1
        sampling = SamplingParams(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, num_logprobs=None)
        self.scheduler.add(self.last_id, prompt, sampling, max_tokens, stops)
        self.expected[self.last_id] = answer_plainly(
            prompt,
            max_tokens=max_tokens,
            stop_token_ids=stops,
            max_model_len=self.config["max_model_len"],
            num_slots=self.num_slots,
        )
        self.heard[self.last_id] = []
        self.prompts[self.last_id] = len(prompt)
        self.max_tokens[self.last_id] = max_tokens

    @precondition(lambda self: self.last_id > 0)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        group_id = data.draw(st.integers(1, self.last_id), label="group_id")
        if self.scheduler.abort(group_id):
            del self.expected[group_id]
        assert not self.scheduler.abort(group_id)

    @rule()
    def plan_and_forget(self) -> None:
        self.scheduler.schedule()

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        plan = self.scheduler.schedule()
        self.check_plan(plan)
        tokens: list[int | None] = list(self.model.run(self.builder.build(plan), self.scheduler.free_blocks().tolist()))
        failing = data.draw(st.sampled_from([None] * 9 + list(range(len(tokens)))), label="row with a NaN")
        if failing is not None:
            tokens[failing] = None
        if self.last_id and data.draw(st.integers(0, 5), label="abort in between") == 0:
            self.abort(data)
        self.update(plan, tokens, failing)

    def check_plan(self, plan: SchedulerOutput) -> None:
        threshold = self.config["long_prefill_token_threshold"] or plan.num_tokens
        counts = [num_tokens for _, _, num_tokens in plan.scheduled]
        assert plan.num_tokens == sum(counts) <= self.config["max_num_batched_tokens"]
        assert all(0 < count <= threshold for count in counts)
        assert len(counts) <= self.scheduler.num_running <= self.config["max_num_seqs"]
        assert not {group_id for group_id, _, _ in plan.scheduled} & set(plan.preempted)

    def update(self, plan: SchedulerOutput, tokens: list[int | None], failing: int | None) -> None:
        for event in self.scheduler.update_tokens(plan, tokens):
            expected, heard = self.expected[event.group_id], self.heard[event.group_id]
            if event.token_id is not None:
                assert event.sample_row is not None
                assert tokens[event.sample_row] == event.token_id
                heard.append(event.token_id)
                assert heard == expected.tokens[: len(heard)]
            if event.finish_reason is not None:
                del self.expected[event.group_id]
                if event.finish_reason.name == "ERROR":
                    assert failing is not None
                    assert event.token_id is None
                else:
                    assert (heard, event.finish_reason.name) == (expected.tokens, expected.reason)

    @invariant()
    def nothing_is_broken(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_invariants()
            assert self.scheduler.num_running + self.scheduler.num_waiting <= len(self.expected)
            assert self.scheduler.has_unfinished() == bool(self.expected)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        allowed = sum(self.prompts[i] + 2 * self.max_tokens[i] + 1 for i in self.expected)
        while self.scheduler.has_unfinished():
            plan = self.scheduler.schedule()
            allowed -= 1
            assert allowed >= 0
            self.update(plan, list(self.model.run(self.builder.build(plan), [])), None)
        assert not self.expected
        assert self.scheduler.num_free_blocks == self.scheduler.num_blocks == self.config["num_blocks"]
        assert sorted(self.scheduler.free_blocks().tolist()) == list(range(self.config["num_blocks"]))


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
