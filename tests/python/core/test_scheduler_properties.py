"""Any sequence of wishes through the bindings: each branch is answered as if alone, and no block is lost."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from core.plain_requests import NEVER, PlainBranch, PlainRequest, num_blocks_needed
from core.prefix_rules import ROOTS, PrefixRules, text
from core.scheduler_strategies import MODES, configs
from core.toy_model import VOCAB_SIZE, ToyModel, next_token
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from fastpaged._core import BatchBuilder, SamplingParams, Scheduler, SchedulerOutput, SequenceEvent

TOKENS = st.integers(0, VOCAB_SIZE - 1)
TIMES = st.sampled_from([NEVER] * 5 + [0, 1, 4, 20])  # from now on, in steps
BLOCKS_COPIED = {
    "swap_out": "num_blocks_swapped_out",
    "swap_in": "num_blocks_swapped_in",
    "copy_on_write": "num_blocks_copied_on_write",
}
STATS = (
    "num_preemptions", "num_groups_swapped_out", "num_groups_swapped_in", "num_prefix_tokens_found",
    *BLOCKS_COPIED.values(),
)  # fmt: skip


class SchedulerMachine(PrefixRules):
    """requests: the unfinished ones. A plan is open from schedule() to its update(), or the next schedule()."""

    @initialize(config=configs())
    def start(self, config: dict[str, Any]) -> None:
        self.config = config
        self.num_blocks, self.block_size = config["num_blocks"], config["block_size"]
        self.scheduler = Scheduler(**config)
        self.builder = BatchBuilder(self.scheduler)
        self.model = ToyModel(self.num_blocks, self.block_size, config["num_host_blocks"])
        self.requests: dict[int, PlainRequest] = {}
        self.num_added = 0
        self.counted: Counter[str] = Counter()
        self.num_interruptions = 0  # preemptions by force, and plans forgotten
        self.forced: set[int] = set()  # to be preempted by the next plan
        self.now = 0  # of the last plan
        self.open = False
        # Group and sequence of each sampling row of the open plan, and how many tokens are drawn from it.
        self.sampling: list[tuple[int, int, int]] = []
        self.pinned = set()
        self.gone: dict[int, tuple[PlainRequest, PlainBranch]] = {}  # taken away since the last update, by sequence
        self.ready: set[int] = set()  # groups that the last update left with one token to compute in each branch

    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        self.add_some(data)

    def add_some(self, data: st.DataObject) -> None:
        longest = min(self.config["max_model_len"] - 1, self.num_blocks * self.block_size)
        for _ in range(data.draw(st.integers(1, 4), label="count")):
            group_id = self.num_added = self.num_added + 1
            length = data.draw(st.sampled_from([n for n in (1, 2, 3, 5, 9, 17) if n <= longest]), label="length")
            which = data.draw(st.sampled_from([0, 0, 1, group_id]), label="text")
            prompt = text(which, length)
            max_tokens = data.draw(st.sampled_from([1, 2, 6, 15, 60]), label="max_tokens")
            stop_token_ids = data.draw(st.lists(TOKENS, max_size=1), label="stop_token_ids")
            most = min(self.config["max_num_seqs"], self.config["max_num_batched_tokens"], 4)
            num_samples = data.draw(st.sampled_from([n for n in (1, 1, 2, 4) if n <= most]), label="num_samples")
            root = data.draw(ROOTS, label="cache_root")
            request = PlainRequest(prompt, max_tokens, stop_token_ids, num_samples, seed=group_id % 2)
            request.deadline = min(NEVER, self.now + data.draw(TIMES, label="deadline"))
            request.queue_deadline = min(NEVER, self.now + data.draw(TIMES, label="queue_deadline"))
            priority = data.draw(st.integers(0, 2), label="priority")
            sampling = SamplingParams(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, num_logprobs=None)
            terms = priority, request.deadline, request.queue_deadline
            self.scheduler.add(group_id, prompt, sampling, max_tokens, stop_token_ids, num_samples, root, False, *terms)
            (sequence_id,) = self.scheduler.sequences(group_id)
            request.branches[sequence_id] = PlainBranch(sequence_id, prompt[:], voice=request.voice(0))
            self.requests[group_id] = request

    @precondition(lambda self: len(self.requests) > 2)
    @rule(data=st.data())
    def abort_one_of_many(self, data: st.DataObject) -> None:
        self.abort(data)

    def abort(self, data: st.DataObject) -> None:
        group_id = data.draw(st.sampled_from(sorted(self.requests)), label="group_id")
        done = self.scheduler.abort(group_id)
        assert done or self.open  # false: it ended while planning, and the update will say so
        assert not self.scheduler.abort(group_id)
        if done:
            self.take_away(group_id, list(self.requests[group_id].branches))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), really=st.booleans())
    def finish_a_branch(self, data: st.DataObject, really: bool) -> None:
        if really:
            self.finish(data)

    def finish(self, data: st.DataObject) -> None:
        group_id = data.draw(st.sampled_from(sorted(self.requests)), label="group_id")
        sequence_id = data.draw(st.sampled_from(list(self.requests[group_id].branches)), label="sequence_id")
        done = self.scheduler.finish(group_id, sequence_id)
        assert done or self.open
        assert not self.scheduler.finish(group_id, sequence_id)
        if done:
            self.take_away(group_id, [sequence_id])

    def take_away(self, group_id: int, sequence_ids: list[int]) -> None:
        request = self.requests[group_id]
        for sequence_id in sequence_ids:
            self.gone[sequence_id] = (request, request.branches.pop(sequence_id))
        if not request.branches:
            del self.requests[group_id]
            self.ready.discard(group_id)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), times=st.integers(1, 4))
    def fork(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            self.fork_one(data, data.draw(st.sampled_from(sorted(self.ready or self.requests)), label="group_id"))

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def fork_whatever_it_does(self, data: st.DataObject) -> None:
        self.fork_one(data, data.draw(st.sampled_from(sorted(self.requests)), label="group_id"))

    def fork_one(self, data: st.DataObject, group_id: int) -> None:
        """A request that has just decoded may be forked, if the limits allow it; none may while a plan is open."""
        branches = self.requests[group_id].branches
        parent = branches[data.draw(st.sampled_from(list(branches)), label="sequence_id")]
        num_branches = sum(request.num_counted for request in self.requests.values())
        within_limits = (
            num_branches < self.config["max_num_seqs"] and len(branches) < self.config["max_num_batched_tokens"]
        )
        unparted = self.requests[group_id].num_samples > 1
        try:
            child = self.scheduler.fork(group_id, parent.sequence_id)
        except ValueError:
            assert self.open or group_id not in self.ready or not within_limits or unparted
            return
        assert not self.open
        assert not unparted
        assert child not in branches
        branches[child] = parent.fork(child)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), times=st.integers(1, 3))
    def preempt(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            if self.requests:
                self.preempt_one(data)

    def preempt_one(self, data: st.DataObject) -> None:
        """By force; and the plan that does it may be lost."""
        mode = data.draw(MODES, label="mode")
        group_id = data.draw(st.sampled_from(sorted(self.requests)), label="group_id")
        assert self.scheduler.preempt(group_id, mode) or self.open
        assert not self.scheduler.preempt(self.num_added + 1, mode)
        self.forced.add(group_id)
        self.num_interruptions += 1
        if data.draw(st.integers(0, 3), label="plan is lost") == 3:
            self.plan_and_forget(data)

    @rule(really=st.sampled_from([False] * 9 + [True]))
    def reset(self, really: bool) -> None:
        if really:
            self.scheduler.reset()
            self.requests.clear()
            self.gone.clear()
            self.ready.clear()
            self.forced.clear()
            self.open = False

    @rule(data=st.data())
    def plan_and_forget_it(self, data: st.DataObject) -> None:
        self.plan_and_forget(data)

    def plan_and_forget(self, data: st.DataObject) -> None:
        """The plan is lost on its way, or its answer is."""
        plan = self.schedule()
        how_far = data.draw(st.sampled_from(["planned", "ended in between", "copied", "computed"]), label="how far")
        self.num_interruptions += 1
        if how_far == "ended in between" and self.requests:
            self.finish(data)
            self.refuses_to_build_what_is_gone(plan)
        elif how_far == "copied":
            self.model.copy(plan.copies)
        elif how_far == "computed":
            self.run(plan)

    def refuses_to_build_what_is_gone(self, plan: SchedulerOutput) -> None:
        refused = False
        try:
            self.builder.build(plan)
        except ValueError as error:
            refused = "which was aborted since" in str(error)
        assert refused == any(sequence_id in self.gone for sequence_id in plan.scheduled_sequences)

    @rule(data=st.data(), times=st.integers(1, 12))
    def step(self, data: st.DataObject, times: int) -> None:
        if not self.requests:
            self.add_some(data)
        for _ in range(times):
            self.one_step(data)
            if not self.requests:
                return
            happens = data.draw(st.integers(0, 7), label="after a step")
            if happens in (5, 6) and self.ready:
                self.fork_one(data, data.draw(st.sampled_from(sorted(self.ready)), label="group_id"))
            elif happens == 7:
                self.preempt_one(data)

    @precondition(lambda self: not self.requests)
    @rule()
    def step_with_nothing_to_do(self) -> None:
        plan = self.schedule()
        assert (plan.scheduled, plan.copies, plan.preempted, self.run(plan)) == ([], [], [], [])
        self.update(plan, [])

    def one_step(self, data: st.DataObject) -> None:
        plan = self.schedule()
        tokens: list[int | None] = list(self.run(plan))
        failing = data.draw(st.sampled_from([None] * 59 + list(range(len(tokens)))), label="row with a NaN")
        if failing is not None:
            tokens[failing] = None
        happens = data.draw(st.integers(0, 31), label="in between")
        if self.requests and happens > 29:
            (self.abort if happens == 31 else self.finish)(data)
        self.update(plan, tokens)

    def schedule(self) -> SchedulerOutput:
        self.poison()  # what is free before a plan is nothing it may copy
        had_work = self.scheduler.has_unfinished()
        self.now += 1
        plan = self.scheduler.schedule(self.now)
        self.open = True
        self.ready.clear()
        for kind, _, _, num_blocks in plan.copies:
            self.counted[BLOCKS_COPIED[kind]] += num_blocks
        self.counted["num_preemptions"] += len(plan.preempted)
        self.counted["num_groups_swapped_out"] += len(plan.swapped_out)
        self.counted["num_groups_swapped_in"] += len(plan.swapped_in)
        self.counted["num_prefix_tokens_found"] += sum(num_tokens for _, num_tokens in plan.cached)
        self.check_plan(plan)
        self.forced.clear()
        self.must_end_something = had_work and plan.num_tokens == 0
        return plan

    def poison(self) -> None:
        self.model.poison(self.scheduler.free_blocks(), self.scheduler.free_host_blocks())

    def check_plan(self, plan: SchedulerOutput) -> None:
        counts = [num_tokens for _, _, num_tokens in plan.scheduled]
        assert plan.num_tokens == sum(counts) <= self.config["max_num_batched_tokens"]
        assert len(counts) == len(plan.scheduled_sequences) <= self.config["max_num_seqs"]
        policy = self.config["policy"]
        if policy.long_prefill_token_threshold:
            assert all(count <= policy.long_prefill_token_threshold for count in counts)
        scheduled = {group_id for group_id, _, _ in plan.scheduled}
        assert not scheduled & (set(plan.preempted) - self.forced)
        self.sampling = []
        for (group_id, first, count), sequence_id in zip(plan.scheduled, plan.scheduled_sequences, strict=True):
            num_known = len(self.requests[group_id].branches[sequence_id].context)
            assert count > 0
            assert first + count <= num_known
            assert policy.chunked_prefill or first + count >= num_known - 1
            if first + count == num_known:
                self.sampling.append((group_id, sequence_id, self.requests[group_id].num_samples))
        assert plan.num_samples == plan.num_rows == len(self.sampling)
        assert plan.num_results == sum(num_draws for _, _, num_draws in self.sampling)
        for group_id in {group_id for group_id, _, _ in self.sampling}:  # all branches, or none
            branches = [there for group, there, _ in self.sampling if group == group_id]
            assert branches == self.scheduler.sequences(group_id)
        for group_id, num_tokens in plan.cached:
            assert num_tokens < len(self.requests[group_id].prompt)
            assert self.config["prefix_caching"] or num_tokens == 0
            assert self.requests[group_id].queue_deadline > self.now
            self.requests[group_id].queue_deadline = NEVER
        assert all(self.requests[group_id].deadline > self.now for group_id in scheduled)

    def run(self, plan: SchedulerOutput) -> list[int]:
        """A token for each draw, of what the cache really has."""
        self.model.copy(plan.copies)
        self.poison()
        contexts = self.model.compute(self.builder.build(plan))
        tokens = []
        for (group_id, sequence_id, num_draws), (i, context) in zip(self.sampling, contexts, strict=True):
            assert plan.scheduled_sequences[i] == sequence_id
            request = self.requests[group_id]
            voice = request.branches[sequence_id].voice
            voices = [sequence_id if voice is None else voice]
            tokens += [next_token(context, one) for one in voices + [request.voice(j) for j in range(1, num_draws)]]
        return tokens

    def update(self, plan: SchedulerOutput, tokens: list[int | None]) -> None:
        draws = []  # group, sequence, place among the tokens, and which sample, of all who are still here
        place = 0
        for group_id, sequence_id, num_draws in self.sampling:
            if self.is_here(sequence_id):
                draws += [(group_id, sequence_id, place + sample, sample) for sample in range(num_draws)]
            place += num_draws
        for (group_id, first, count), sequence_id in zip(plan.scheduled, plan.scheduled_sequences, strict=True):
            if self.is_here(sequence_id):
                branch = self.requests[group_id].branches[sequence_id]
                self.counted["num_tokens_recomputed"] += branch.compute(first, count)
        events = self.scheduler.update_tokens(plan, tokens)
        assert events or not self.must_end_something
        num_ended = len(events) - len(draws)
        for event in events[:num_ended]:
            self.note_end_while_planning(event)
        answers = events[num_ended:]
        for i, (event, (group_id, sequence_id, place, sample)) in enumerate(zip(answers, draws, strict=True)):
            request = self.requests[group_id]
            assert (event.group_id, event.parent_id) == (group_id, sequence_id)
            assert (event.sequence_id == event.parent_id) == (sample == 0)
            if request.num_samples > 1:
                self.part(request, answers[i : i + request.num_samples])
            self.note_sample(event, place, tokens[place])
        self.open = False
        self.gone.clear()
        self.ready = {group_id for group_id, _, _, _ in draws if group_id in self.requests}
        self.check_sharing()

    def part(self, request: PlainRequest, events: list[SequenceEvent]) -> None:
        """Each sample but the first is a branch of its own from now on, and has not answered yet."""
        parent = request.branches[events[0].sequence_id]
        assert [event.branch for event in events] == list(range(request.num_samples))
        for sample, event in enumerate(events[1:], start=1):
            assert event.sequence_id not in request.branches
            request.branches[event.sequence_id] = parent.part(event.sequence_id, request.voice(sample))
        request.num_samples = 1

    def is_here(self, sequence_id: int) -> bool:
        return sequence_id not in self.gone

    def note_sample(self, event: SequenceEvent, row: int, token: int | None) -> None:
        request = self.requests[event.group_id]
        branch = request.branches[event.sequence_id]
        reason: str | None = "ERROR"
        assert event.token_id == token
        if token is not None:
            assert token == branch.next()
            assert event.sample_row == row
            branch.context.append(token)
            reason = request.finish_reason(branch, self.config["max_model_len"])
        assert (None if event.finish_reason is None else event.finish_reason.name) == reason
        if reason is not None:
            del request.branches[event.sequence_id]
        assert event.group_finished == (not request.branches)
        if not request.branches:
            del self.requests[event.group_id]

    def note_end_while_planning(self, event: SequenceEvent) -> None:
        """Its time is up, or the branches of its request, those included that have gone since, are more than the whole
        pool can hold."""
        assert event.token_id is None
        assert event.finish_reason is not None
        was_taken_away = event.sequence_id in self.gone
        request = self.gone[event.sequence_id][0] if was_taken_away else self.requests[event.group_id]
        gone = [branch for owner, branch in self.gone.values() if owner is request]
        if event.finish_reason.name == "LENGTH":
            branches = [*request.branches.values(), *gone]
            num_tokens = len(branches[0].context)  # the same for all: they decode together
            assert num_blocks_needed(branches, num_tokens, self.block_size) > self.num_blocks
        else:
            assert event.finish_reason.name == request.finish_reason_by_time(self.now)
        if was_taken_away:
            del self.gone[event.sequence_id]
            return
        del request.branches[event.sequence_id]
        assert gone or event.group_finished == (not request.branches)
        if not request.branches:
            del self.requests[event.group_id]

    def check_sharing(self) -> None:
        """When all that run have just decoded: what was written before a fork lies in one place, whatever happened."""
        if self.scheduler.num_running == len(self.ready):
            needed = sum(
                num_blocks_needed(branches, len(branches[0].context) - 1, self.block_size)
                for branches in (list(self.requests[group_id].branches.values()) for group_id in self.ready)
            )
            held = self.scheduler.num_blocks - self.scheduler.num_free_blocks
            assert held <= needed + self.num_pinned() if self.config["prefix_caching"] else held == needed

    @invariant()
    def nothing_is_broken(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        scheduler = self.scheduler
        scheduler.check_invariants()
        assert {name: getattr(scheduler.stats, name) for name in STATS} == {name: self.counted[name] for name in STATS}
        again = scheduler.stats.num_tokens_recomputed - self.counted["num_tokens_recomputed"]
        assert again == 0 or (again > 0 and self.config["prefix_caching"])  # what was found, lost and then computed
        assert {pin.id for pin in scheduler.pins()} == self.pinned
        num_groups = scheduler.num_waiting + scheduler.num_running + scheduler.num_swapped
        if self.open:  # some may have ended, and wait for the update to say so
            assert num_groups <= len(self.requests)
            assert scheduler.has_unfinished() or not self.requests
            return
        assert num_groups == len(self.requests)
        assert scheduler.has_unfinished() == bool(self.requests)
        for group_id, request in self.requests.items():
            assert scheduler.sequences(group_id) == list(request.branches)
        if not self.requests:
            self.all_is_free()

    def all_is_free(self) -> None:
        """But for pins."""
        scheduler = self.scheduler
        free = sorted(scheduler.free_blocks().tolist() + scheduler.cached_free_blocks().tolist())
        assert len(set(free)) == len(free) == scheduler.num_free_blocks
        assert set(free) <= set(range(self.num_blocks))
        assert self.num_blocks - len(free) <= self.num_pinned()
        on_host = scheduler.free_host_blocks().tolist() + scheduler.cached_free_host_blocks().tolist()
        assert sorted(on_host) == list(range(self.config["num_host_blocks"]))
        assert scheduler.num_free_host_blocks == scheduler.num_host_blocks == self.config["num_host_blocks"]

    def teardown(self) -> None:
        """Left alone, all come to their end within the bound that the scheduler states."""
        if not hasattr(self, "scheduler"):
            return
        allowed = sum(request.num_steps_allowed() for request in self.requests.values())
        allowed = max(1, allowed) * (1 + self.num_interruptions)
        allowed *= 1 + 4 * len(self.requests) if self.config["policy"].by_priority else 1
        while self.scheduler.has_unfinished():
            assert allowed > 0
            allowed -= 1
            plan = self.schedule()
            self.update(plan, list(self.run(plan)))
        assert not self.requests
        self.open = False
        for pin_id in sorted(self.pinned):
            assert self.scheduler.unpin(pin_id)
        self.pinned.clear()
        self.nothing_is_broken()
        assert self.scheduler.num_free_blocks == self.num_blocks


TestScheduler = SchedulerMachine.TestCase
PROOF_SCALE = int(os.environ.get("FASTPAGED_PROOF_SCALE", "1"))  # how much more than usual `make prove` wants
TestScheduler.settings = settings(max_examples=150 * PROOF_SCALE, stateful_step_count=40, deadline=None)
