"""Replaying a recording: the same C++ scheduler is told what it was told then, and must decide what it decided then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastpaged import _core
from fastpaged.engine.decisions import Row, changed_rows, decisions_of, ends_of, plan_rows
from fastpaged.engine.recorder import fields_of
from fastpaged.errors import InvalidRequestError
from fastpaged.simulator.core_calls import add_request, results_of, root_of, scheduler_of
from fastpaged.simulator.recording import Event, Recording, read_recording
from fastpaged.simulator.replayed_paths import ReplayedPaths

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastpaged.simulator.header import Header

_DECISIONS = ("s", "copies", "preempted", "out", "in", "let_in", "cached")


@dataclass(frozen=True)
class Difference:
    """Where a replay decided otherwise. step: of schedule(), from 1. what: the name of a field of the recording."""

    line: int
    step: int
    what: str
    recorded: object
    replayed: object

    def __str__(self) -> str:
        return (
            f"step {self.step} (line {self.line}), {self.what}: recorded {self.recorded!r:.200}, "
            f"replayed {self.replayed!r:.200}"
        )


@dataclass(frozen=True)
class ReplayResult:
    """differences: the first ones; num_decisions counts what was compared."""

    num_steps: int
    num_decisions: int
    num_differences: int
    differences: tuple[Difference, ...]
    is_cut: bool
    stats: dict[str, int]


class Replayer:
    """A scheduler that goes through a recording, event by event."""

    def __init__(self, header: Header) -> None:
        """Raises InvalidRequestError if this version's scheduler cannot be made like the one that was recorded."""
        self.header = header
        try:
            self.scheduler = scheduler_of(header)
        except ValueError as error:
            raise InvalidRequestError(f"the recorded scheduler cannot be made: {error}") from error
        self.step = 0
        self.num_decisions = 0
        self.plan: _core.SchedulerOutput | None = None  # the last one
        self.time = 0
        self.rows: list[Row] = []  # of the last plan
        self.events: list[_core.SequenceEvent] = []  # that came of it
        self.prompt: list[int] = []  # of the last request or pin
        self._paths = ReplayedPaths(header.max_prompt)
        self._differences: list[Difference] = []

    def feed(self, event: Event) -> list[Difference]:
        """The next event; what was decided otherwise. Raises InvalidRequestError for one that cannot be."""
        handlers: dict[str, Callable[[Event, dict[str, Any]], None]] = {
            "plan": self._plan,
            "update": self._update,
            "add": self._add,
            "pin": self._pin,
        }
        self._differences = []
        self.time = event.time
        try:
            handlers.get(event.kind, self._call)(event, event.what)
        except (ValueError, TypeError, LookupError, RuntimeError, ArithmeticError, AttributeError) as error:
            raise InvalidRequestError(
                f"line {event.line} of the recording cannot be replayed: {error!r:.200}"
            ) from error
        return self._differences

    def _add(self, event: Event, what: dict[str, Any]) -> None:
        options = {name: value for name, value in what.items() if name not in ("id", "max", "p")}
        self.prompt = self._paths.prompt(what["p"])
        add_request(self.scheduler, what["id"], self.prompt, what["max"], **options)

    def _plan(self, event: Event, what: dict[str, Any]) -> None:
        self.step += 1
        self.plan = self.scheduler.schedule() if what.get("still") else self.scheduler.schedule(event.time)
        rows = plan_rows(self.plan)
        decided = decisions_of(self.plan)
        changes = changed_rows(self.rows, rows)
        if changes is not None:
            decided["s"] = changes
        self.rows = rows
        for name in _DECISIONS:
            self._compare(event, name, what.get(name), _plain(decided.get(name)))

    def _update(self, event: Event, what: dict[str, Any]) -> None:
        if self.plan is None:
            raise ValueError("results without a plan")
        for number, parent, offset in what.get("new", ()):
            self._paths.begin(number, parent, offset)
        events = self.scheduler.update_rows(self.plan, *results_of(what, self.plan.num_results))
        self.events = list(events)
        self._compare(event, "ends", what.get("ends"), ends_of(events) or None)

    def _pin(self, event: Event, what: dict[str, Any]) -> None:
        self.prompt = self._paths.prompt(what["p"])
        held = self.scheduler.pin(what["id"], self.prompt, root_of(what.get("root")))
        self._compare(event, "held", what["held"], held)

    def _call(self, event: Event, what: dict[str, Any]) -> None:
        """What takes ids, and returns at most one thing."""
        scheduler = self.scheduler
        match event.kind:
            case "abort":
                self._compare(event, "ok", what["ok"], scheduler.abort(what["id"]))
            case "finish":
                self._compare(event, "ok", what["ok"], scheduler.finish(what["id"], what["seq"]))
            case "finish_beams":
                self._compare(event, "ok", what["ok"], scheduler.finish_beams(what["id"], what["seqs"]))
            case "fork":
                self._compare(event, "made", what["made"], scheduler.fork(what["id"], what["seq"]))
            case "preempt":
                self._compare(event, "ok", what["ok"], scheduler.preempt(what["id"], what["mode"]))
            case "unpin":
                self._compare(event, "ok", what["ok"], scheduler.unpin(what["id"]))
            case "quarantine":
                pass  # the recording ends with it
            case "reset":
                scheduler.reset()
            case "reset_prefix_cache":
                scheduler.reset_prefix_cache()
            case "costs":
                scheduler.set_costs(_core.PreemptionCosts(**what))
            case _:
                raise ValueError(f"an event of unknown kind {event.kind!r}")

    def _compare(self, event: Event, name: str, recorded: object, replayed: object) -> None:
        self.num_decisions += 1
        if recorded != replayed:
            self._differences.append(Difference(event.line, self.step, name, recorded, replayed))


def replay(path: str) -> ReplayResult:
    """Of a file: see replay_recording(). Raises InvalidRequestError for what is no recording."""
    return replay_recording(read_recording(path))


def replay_recording(recording: Recording, max_differences: int = 10) -> ReplayResult:
    """All of a recording, or up to what cannot be any more after what was decided otherwise. Raises InvalidRequestError
    for what cannot be replayed at all."""
    replayer = Replayer(recording.header)
    first: list[Difference] = []
    num_differences = 0
    for event in recording.events:
        try:
            differences = replayer.feed(event)
        except InvalidRequestError as error:
            if num_differences == 0:
                raise
            first.append(Difference(event.line, replayer.step, event.kind, "carried out", str(error)))
            break
        num_differences += len(differences)
        first.extend(differences[: max_differences - len(first)])
    return ReplayResult(
        replayer.step,
        replayer.num_decisions,
        num_differences,
        tuple(first),
        recording.is_cut,
        fields_of(replayer.scheduler.stats),
    )


def _plain(value: Any) -> Any:
    """As JSON would give it back."""
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
