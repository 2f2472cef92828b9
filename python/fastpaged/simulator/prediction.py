"""What the recorded requests would have met with other settings.

They come when they came, with the texts they had, and get the answers they got; the same C++ scheduler plans with other
settings, on a clock that every step takes on by what StepTimes says. Pins, aborts and resets happen at their times.
Steps come one after the other: what async_scheduling does during a step is done after it. What a request that was cut
short, by an abort or a deadline, would have answered beyond that is not known: it goes on with tokens like no others.
Nor is it known who would have been aborted had it taken longer: an abort that came after a request's end is none.
A pin that these settings have no room for, or that fills no block of another size, is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fastpaged import _core
from fastpaged.engine.decisions import plan_rows
from fastpaged.engine.recorder import fields_of
from fastpaged.errors import InvalidRequestError
from fastpaged.simulator.branches import Branches, Draws
from fastpaged.simulator.core_calls import add_request, root_of, scheduler_of
from fastpaged.simulator.figures import Figures, Tally
from fastpaged.simulator.header import MAX_BLOCK_SIZE, MAX_BLOCKS
from fastpaged.simulator.step_times import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastpaged.simulator.core_calls import Results
    from fastpaged.simulator.header import Header
    from fastpaged.simulator.history import Answers, History, Outside
    from fastpaged.simulator.step_times import StepTimes

POLICIES = ("fcfs", "priority", "paper")
_RANGES = (("blocks", 1, MAX_BLOCKS), ("host_blocks", 0, MAX_BLOCKS), ("block_size", 1, MAX_BLOCK_SIZE))
_FIRST_UNKNOWN_TOKEN = 2**30  # of answers that go on beyond the recorded ones: no strand has such a number


@dataclass(frozen=True)
class Changes:
    """Settings that differ from the recorded ones; None: they do not.

    blocks, host_blocks: of the pools. block_size: without them the pools stay as large as they are in bytes. policy: of
    POLICIES; preemption_mode: see SchedulerPolicy.
    """

    blocks: int | None = None
    host_blocks: int | None = None
    block_size: int | None = None
    policy: str | None = None
    preemption_mode: str | None = None

    def applied_to(self, header: Header) -> Header:
        """The header of a recording with these settings. What a block costs goes with its size. Raises
        InvalidRequestError for a number that is out of range, or with which a pool is."""
        for name, least, greatest in _RANGES:
            value = getattr(self, name)
            if value is not None and not least <= value <= greatest:
                raise InvalidRequestError(f"{name} must be from {least} to {greatest}, got {value}")
        scheduler, policy, costs = dict(header.scheduler), dict(header.policy), dict(header.costs)
        ratio = self.block_ratio(header)
        if self.block_size is not None:
            scheduler["block_size"] = self.block_size
            for name in ("num_blocks", "num_host_blocks", "max_pinned_blocks"):
                if name in scheduler:
                    scheduler[name] = int(scheduler[name] / ratio)
            costs = {name: cost * (1.0 if name == "seconds_per_token" else ratio) for name, cost in costs.items()}
            if scheduler["num_blocks"] == 0 and self.blocks is None:
                raise InvalidRequestError(
                    f"block_size must leave at least one block of a pool of {header.scheduler['num_blocks']} blocks of "
                    f"{header.scheduler['block_size']} tokens, got {self.block_size}"
                )
        if self.blocks is not None:
            scheduler["num_blocks"] = self.blocks
            scheduler["max_pinned_blocks"] = min(scheduler.get("max_pinned_blocks", 0), self.blocks)
        if self.host_blocks is not None:
            scheduler["num_host_blocks"] = self.host_blocks
        for name in ("num_blocks", "num_host_blocks"):
            if scheduler.get(name, 0) > MAX_BLOCKS:
                raise InvalidRequestError(
                    f"no pool may have more than {MAX_BLOCKS} blocks, got {scheduler[name]} with a block_size of "
                    f"{scheduler['block_size']}"
                )
        if self.policy == "paper":
            policy = fields_of(_core.SchedulerPolicy.paper_2023())
            longest = scheduler["max_model_len"]  # prompts are computed whole
            scheduler["max_num_batched_tokens"] = max(scheduler["max_num_batched_tokens"], longest)
        elif self.policy is not None:
            policy["by_priority"] = self.policy == "priority"
        if self.preemption_mode is not None:
            policy["preemption_mode"] = self.preemption_mode
        block_bytes = round(header.block_bytes * ratio)
        return replace(header, scheduler=scheduler, policy=policy, costs=costs, block_bytes=block_bytes)

    def block_ratio(self, header: Header) -> float:
        """A block's size to that of the recording."""
        return 1.0 if self.block_size is None else self.block_size / int(header.scheduler["block_size"])


def predict(
    header: Header,
    history: History,
    step_times: StepTimes,
    changes: Changes,
    on_planned: Callable[[_core.SchedulerOutput], None] | None = None,
) -> Figures:
    """header, history: of one recording. on_planned: is shown each plan.

    Raises InvalidRequestError for settings that the scheduler, or a request of the recording, cannot be run with.
    """
    try:
        return _Run(header, history, step_times, changes).run(on_planned)
    except InvalidRequestError:
        raise
    except ValueError as error:
        raise InvalidRequestError(f"the recorded requests cannot be run like that: {error}") from error


class _Run:
    """One virtual run."""

    def __init__(self, header: Header, history: History, step_times: StepTimes, changes: Changes) -> None:
        changed = changes.applied_to(header)
        self._scheduler = scheduler_of(changed)
        self._ratio = changes.block_ratio(header)
        self._step_times = step_times
        self._history = history
        self._branches = Branches()
        self._tally = Tally(changed.block_bytes)
        self._done: dict[int, dict[int, int]] = {}  # tokens that branches have, of unfinished requests; of beams: steps
        self._next_unknown = _FIRST_UNKNOWN_TOKEN
        self._now = 0

    def run(self, on_planned: Callable[[_core.SchedulerOutput], None] | None) -> Figures:
        outside = iter(self._history.outside)
        coming = next(outside, None)
        while coming is not None or self._scheduler.has_unfinished():
            if not self._scheduler.has_unfinished() and coming is not None:
                self._now = max(self._now, coming.time)
            while coming is not None and coming.time <= self._now:
                self._carry_out(coming)
                coming = next(outside, None)
            if self._scheduler.has_unfinished():
                self._step(on_planned)
        return self._tally.figures(self._scheduler)

    def _step(self, on_planned: Callable[[_core.SchedulerOutput], None] | None) -> None:
        plan = self._scheduler.schedule(self._now)
        self._tally.plan(plan, self._scheduler, self._now)
        if on_planned is not None:
            on_planned(plan)
        self._now += self._step_times.nanoseconds(parts_of(plan_rows(plan), plan.copies, self._ratio))
        draws = self._branches.draws(plan)
        events = list(self._scheduler.update_rows(plan, *self._results(draws, plan.num_results)))
        self._tally.update(events, self._now)
        for event in events:
            if event.kind.name == "SAMPLE" and event.token_id is not None and event.group_id in self._done:
                done = self._done[event.group_id]
                done[event.branch] = done.get(event.branch, 0) + 1
        self._branches.note(events)
        self._stop(draws, events)
        for event in events:
            if event.group_finished:
                self._done.pop(event.group_id, None)

    def _results(self, draws: list[Draws], num_results: int) -> Results:
        """Those that were recorded, for what is drawn now."""
        tokens = [0] * num_results
        failed: list[int] = []
        candidates: list[list[tuple[int, float]]] = [[] for _ in range(num_results)]
        for of in draws:
            answers, done = self._history.answers[of.group_id], self._done[of.group_id]
            if self._branches.is_search(of.group_id):
                step = done.get(0, 0)
                if step < len(answers.growths):
                    rows = answers.growths[step].candidates
                    for row in of.rows:
                        candidates[row] = rows[of.branch] if of.branch < len(rows) else []
                elif answers.failed:
                    failed += of.rows
                continue
            for place, row in enumerate(of.rows):
                branch = of.branch + place
                tokens[row] = self._token(answers, branch, done.get(branch, 0))
                if tokens[row] < 0:
                    tokens[row] = 0
                    failed.append(row)
        return tokens, failed, candidates

    def _token(self, answers: Answers, branch: int, index: int) -> int:
        """-1: there is none, for it failed."""
        known = answers.tokens.get(branch, [])
        if index < len(known):
            return known[index]
        if branch in answers.failed:
            return -1
        self._next_unknown += 1
        return self._next_unknown

    def _stop(self, draws: list[Draws], events: list[_core.SequenceEvent]) -> None:
        """Stop strings, where they were found; and nobody goes on beyond where the recording ends."""
        for event in events:
            answers = self._history.answers[event.group_id]
            done = self._done.get(event.group_id, {}).get(event.branch, 0)
            if (
                event.kind.name == "SAMPLE"
                and event.token_id is not None
                and event.finish_reason is None
                and (answers.is_cut or event.branch in answers.finished)
                and done >= len(answers.tokens.get(event.branch, []))
            ):
                self._scheduler.finish(event.group_id, event.sequence_id)
        searches = [of.group_id for of in draws if of.num_draws and self._branches.is_search(of.group_id)]
        grown = {event.group_id for event in events if event.kind.name == "BEAM"}
        for group_id in dict.fromkeys(searches):
            done_by = self._done[group_id]
            step = done_by.get(0, 0)
            done_by[0] = step + 1
            growths = self._history.answers[group_id].growths
            stopped = growths[step].stopped if step < len(growths) else None
            if stopped is not None and group_id in grown:
                live = self._scheduler.sequences(group_id)
                self._scheduler.finish_beams(group_id, [live[rank] for rank in stopped if rank < len(live)])

    def _carry_out(self, outside: Outside) -> None:
        scheduler, what = self._scheduler, outside.what
        match outside.kind:
            case "add":
                self._add(outside)
            case "abort":
                scheduler.abort(what["id"])
                self._branches.forget(what["id"])
            case "pin":
                self._pin(what["id"], outside.prompt, root_of(what.get("root")))
            case "unpin":
                scheduler.unpin(what["id"])
            case "preempt":
                scheduler.preempt(what["id"], what["mode"])
            case "reset":
                scheduler.reset()
            case "reset_prefix_cache":
                scheduler.reset_prefix_cache()
            case "costs":
                costs: dict[str, Any] = {
                    name: cost * (1.0 if name == "seconds_per_token" else self._ratio) for name, cost in what.items()
                }
                scheduler.set_costs(_core.PreemptionCosts(**costs))

    def _pin(self, pin_id: int, prompt: list[int], root: str) -> None:
        """With these settings it may be refused as an engine would: it fills no block, or more than may be pinned."""
        try:
            self._scheduler.pin(pin_id, prompt, root)
        except ValueError:
            self._tally.leave_out_pin()

    def _add(self, outside: Outside) -> None:
        what = outside.what
        options = {name: value for name, value in what.items() if name not in ("id", "max", "p")}
        add_request(self._scheduler, what["id"], outside.prompt, what["max"], **options)
        self._branches.add(what["id"], is_search="beams" in what)
        self._done[what["id"]] = {}
        self._tally.add(what["id"], outside.time)
