"""History: what a recording's requests asked for and what came of them, apart from when which step did it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastpaged.simulator.branches import Branches, Draws
from fastpaged.simulator.core_calls import candidates_of
from fastpaged.simulator.figures import Figures, Tally
from fastpaged.simulator.replay import Replayer
from fastpaged.simulator.step_times import StepTimes, parts_of

if TYPE_CHECKING:
    from fastpaged.simulator.recording import Event, Recording

# Events that steps do not bring about: they come when they came.
OUTSIDE = ("add", "abort", "pin", "unpin", "preempt", "reset", "reset_prefix_cache", "costs")


@dataclass
class Growth:
    """One step of a beam search: the candidates of each live beam, by rank, and which beams a stop string ended; None
    where nobody said so."""

    candidates: list[list[tuple[int, float]]]
    stopped: list[int] | None = None


@dataclass
class Answers:
    """Of one request. tokens: of each of its samples; finished: those that a stop string ended; failed: those whose
    next token, or the scores of whose prompt, could not be made. is_cut: the recording ends before the request does."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    growths: list[Growth] = field(default_factory=list)
    is_cut: bool = False


@dataclass(frozen=True)
class Outside:
    """Something that was done to the scheduler. prompt: of "add" and "pin"."""

    kind: str
    time: int
    what: dict[str, Any]
    prompt: list[int]


@dataclass
class History:
    """outside: in order. figures: of the run as it was. steps: their parts and durations, in seconds."""

    outside: list[Outside] = field(default_factory=list)
    answers: dict[int, Answers] = field(default_factory=dict)
    parts: list[list[float]] = field(default_factory=list)
    durations: list[float] = field(default_factory=list)
    num_differences: int = 0
    figures: Figures = field(default_factory=Figures)

    def step_times(self) -> StepTimes:
        """Fitted to these steps."""
        return StepTimes.fit(self.parts, self.durations)


def history_of(recording: Recording) -> History:
    """Replays it. Raises InvalidRequestError for what cannot be replayed."""
    replayer = Replayer(recording.header)
    historian = _Historian(replayer)
    for event in recording.events:
        historian.note(event)
    return historian.done()


class _Historian:
    def __init__(self, replayer: Replayer) -> None:
        self._replayer = replayer
        self._history = History()
        self._branches = Branches()
        self._draws: list[Draws] = []  # of the last plan
        self._tally = Tally(replayer.header.block_bytes)
        self._planned: int | None = None  # when that was, as long as its duration is not known
        self._updated = 0

    def note(self, event: Event) -> None:
        what = event.what
        match event.kind:
            case "plan":
                self._end_step(event.time)
            case "finish" if what["id"] in self._history.answers:
                self._history.answers[what["id"]].finished.add(self._branches.branch(what["id"], what["seq"]))
            case "finish_beams" if what["id"] in self._history.answers:
                self._note_stopped_beams(event)
        self._history.num_differences += len(self._replayer.feed(event))
        if event.kind in OUTSIDE:
            self._note_outside(event)
        elif event.kind == "plan":
            self._note_plan(event)
        elif event.kind == "update":
            self._note_results(event)

    def done(self) -> History:
        self._end_step(self._updated)
        for group_id in self._branches.unfinished():
            self._history.answers[group_id].is_cut = True
        self._history.figures = self._tally.figures(self._replayer.scheduler)
        return self._history

    def _note_outside(self, event: Event) -> None:
        group_id: int = event.what.get("id", -1)  # of what has none, nobody asks
        prompt = self._replayer.prompt if event.kind in ("add", "pin") else []
        self._history.outside.append(Outside(event.kind, event.time, event.what, prompt))
        if event.kind == "add":
            self._history.answers[group_id] = Answers()
            self._branches.add(group_id, is_search="beams" in event.what)
            self._tally.add(group_id, event.time)
        elif event.kind == "abort":
            self._branches.forget(group_id)

    def _note_plan(self, event: Event) -> None:
        plan = self._replayer.plan
        assert plan is not None
        self._history.parts.append(parts_of(self._replayer.rows, plan.copies))
        self._planned = event.time
        self._draws = self._branches.draws(plan)
        self._tally.plan(plan, self._replayer.scheduler, event.time)

    def _note_results(self, event: Event) -> None:
        replayer, answers = self._replayer, self._history.answers
        bad = set(event.what.get("bad", ()))
        assert replayer.plan is not None
        candidates = candidates_of(event.what.get("beams", ()), replayer.plan.num_results)
        grown: dict[int, list[list[tuple[int, float]]]] = {}
        for draws in self._draws:
            failed = bad.intersection(range(draws.first_row, draws.rows.stop))
            if failed:
                scored = min(failed) < draws.rows.start
                answers[draws.group_id].failed |= {
                    draws.branch if scored else draws.branch + row - draws.rows.start for row in failed
                }
            elif draws.num_draws and self._branches.is_search(draws.group_id):
                grown.setdefault(draws.group_id, []).append(candidates[draws.rows.start])
        for group_id, rows in grown.items():
            if any(rows):
                answers[group_id].growths.append(Growth(rows))
        for happened in replayer.events:
            if happened.kind.name == "SAMPLE" and happened.token_id is not None:
                answers[happened.group_id].tokens.setdefault(happened.branch, []).append(happened.token_id)
        self._branches.note(replayer.events)
        self._tally.update(replayer.events, event.time)
        self._updated = event.time
        if not replayer.scheduler.has_unfinished():
            self._end_step(event.time)

    def _note_stopped_beams(self, event: Event) -> None:
        growths = self._history.answers[event.what["id"]].growths
        if growths:
            live = self._replayer.scheduler.sequences(event.what["id"]) if event.what["seqs"] else []
            growths[-1].stopped = [rank for rank, sequence in enumerate(live) if sequence in event.what["seqs"]]

    def _end_step(self, time: int) -> None:
        """A step lasts until the next one is planned, or until its results where there is none."""
        if self._planned is not None:
            self._history.durations.append(max(0, time - self._planned) / 1e9)
            self._planned = None
