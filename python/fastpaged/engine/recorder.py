"""RecordingScheduler: the scheduler, and all that goes in and out of it written down, in order.

A recording is lines of JSON. Each is an event, {"e": its kind, "t": nanoseconds since the one before, ...}; what is
empty, zero or as usual is left out. It holds no text, no token and no salt. Where tokens begin like earlier ones is
said by strands (known_paths.py): from that a replay makes tokens that are equal where the real ones are, and different
where they differ, so that a prefix cache finds the same. Times (deadlines) are counted from the header's.

"recording"  the header: format, version, model, block_bytes; scheduler, policy, costs: how it was made
"add"        id, max: its answer's tokens, p: its prompt [strand, offset, num_new, new_strand], scored: it wants the
             prompt's logprobs, beams: of SamplingParams, root: its salt as a number, and what else add() takes
"plan"       schedule(). still: without a time. s: what is computed, [as_before, as_before_at_the_end, rows between],
             where "as before" counts rows of the last plan gone on by a token, and a row is [group, sequence,
             first_token, num_tokens]; copies, preempted, out, in (swapped), let_in, cached: as SchedulerOutput has them
"update"     of the last plan. x: [row, token] of the sampler's rows, those left out being 0: a strand's number, or -1
             for a stop token; new: [strand, parent, offset] of strands that began; bad: rows without a result; beams:
             [row, token, logprob] that went on or ended; ends: [group, sequence, reason]
"abort" "finish" "finish_beams" "fork" "preempt" "reset" "pin" "unpin" "reset_prefix_cache" "costs": the methods of that
             name, with id, seq, seqs, mode; ok, made, held: what they returned
"quarantine" the last event: what was found after an invariant broke, from a cause that the scheduler was not told of
"""

# ruff: noqa: D102  # what they do is Scheduler's to say

from __future__ import annotations

import hashlib
import itertools
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from fastpaged import _core
from fastpaged.engine.decisions import EVENT, Row, changed_rows, decisions_of, ends_of, plan_rows
from fastpaged.engine.known_paths import NEXT, KnownPaths, Position, Walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from fastpaged.engine.recording_file import RecordingFile

STOP = -1
_STOPPED = 0  # FinishReason.STOP's place
_NO_DEADLINE = 2**63 - 1
_NO_STRAND = 2**31 - 1
_USUAL = {"num_samples": 1, "skip_prefix_cache": False, "priority": 0}
_DEADLINES = ("deadline_ns", "queue_deadline_ns")
_MIN_TOKENS_TO_SWEEP = 2**16


def fields_of(value: object) -> dict[str, Any]:
    """What a policy, costs or counts of the core hold, by name."""
    names = (name for name in dir(value) if not name.startswith("_"))
    return {name: held for name in names if not callable(held := getattr(value, name))}


class RecordingScheduler(_core.Scheduler):
    """Writes what was done when it was done: what raises is not written. `recording` is the engine's to close."""

    def __init__(self, recording: RecordingFile, header: Mapping[str, object], **settings: Any) -> None:
        """header: what else the header is to say."""
        super().__init__(**settings)
        self.recording = recording
        policy = settings.pop("policy", None) or _core.SchedulerPolicy()
        costs = settings.pop("costs", None) or _core.PreemptionCosts()
        about = dict(header) | {
            "scheduler": settings,
            "policy": fields_of(policy),
            "costs": fields_of(costs),
        }
        recording.write("recording", about, recording.start)
        recording.flush()
        self._paths = KnownPaths()
        self._positions: dict[int, dict[int | None, Position]] = {}  # of groups, by sequence; None: of its prompt
        self._pinned: dict[int, Position] = {}
        self._caches = bool(settings.get("prefix_caching"))
        self._key = os.urandom(16)
        self._rows: list[Row] = []  # of the last plan
        self._sweep_at = _MIN_TOKENS_TO_SWEEP

    def add(
        self,
        group_id: int,
        prompt_token_ids: Sequence[int],
        sampling: _core.SamplingParams,
        max_tokens: int,
        stop_token_ids: Sequence[int],
        *args: Any,
        **options: Any,
    ) -> None:
        super().add(group_id, prompt_token_ids, sampling, max_tokens, stop_token_ids, *args, **options)
        if not self.recording.is_open:
            return
        options.update(
            zip(("num_samples", "cache_root", "skip_prefix_cache", "priority", *_DEADLINES), args, strict=False)
        )
        walk = self._paths.walk(prompt_token_ids)
        self._positions[group_id] = {None: walk.end}
        event: dict[str, object] = {"id": group_id, "max": max_tokens, "p": _as_list(walk)}
        if sampling.scores_prompt:
            event["scored"] = True
        if sampling.beams is not None:
            event["beams"] = sampling.beams
        root = options.pop("cache_root", "")
        if root:
            event["root"] = self._number_of(root)
        for name in _DEADLINES:
            time = options.pop(name, _NO_DEADLINE)
            if time != _NO_DEADLINE:
                event[name] = time - self.recording.start
        event.update({name: value for name, value in options.items() if value != _USUAL.get(name)})
        self.recording.write("add", event)

    def schedule(self, now_ns: int | None = None) -> _core.SchedulerOutput:
        plan = super().schedule() if now_ns is None else super().schedule(now_ns)
        if not self.recording.is_open:
            return plan
        rows = plan_rows(plan)
        event = decisions_of(plan)
        if now_ns is None:
            event["still"] = True
        changes = changed_rows(self._rows, rows)
        if changes is not None:
            event["s"] = changes
        self._rows = rows
        self.recording.write("plan", event, now_ns)
        return plan

    def update(self, plan: _core.SchedulerOutput, result: _core.SamplerOutput) -> _core.StepEvents:
        events = super().update(plan, result)
        if self.recording.is_open:
            failed = np.flatnonzero(~result.ok).tolist()
            self._note_events(events, failed, lambda row: _candidates(result, row))
        return events

    def update_rows(
        self,
        plan: _core.SchedulerOutput,
        token_ids: Sequence[int],
        failed_rows: Sequence[int] = (),
        candidates: Sequence[Sequence[tuple[int, float]]] = (),
    ) -> _core.StepEvents:
        events = super().update_rows(plan, token_ids, failed_rows, candidates)
        if self.recording.is_open:
            self._note_events(events, list(failed_rows), lambda row: candidates[row])
        return events

    def update_tokens(self, plan: _core.SchedulerOutput, token_ids: Sequence[int | None]) -> list[_core.SequenceEvent]:
        failed = [row for row, token_id in enumerate(token_ids) if token_id is None]
        return list(self.update_rows(plan, [token_id or 0 for token_id in token_ids], failed))

    def abort(self, group_id: int) -> bool:
        found = super().abort(group_id)
        self._positions.pop(group_id, None)
        self._note("abort", id=group_id, ok=found)
        return found

    def finish(self, group_id: int, sequence_id: int) -> bool:
        found = super().finish(group_id, sequence_id)
        self._positions.get(group_id, {}).pop(sequence_id, None)
        if not self._is_there(group_id):  # of which no event will tell
            self._positions.pop(group_id, None)
        self._note("finish", id=group_id, seq=sequence_id, ok=found)
        return found

    def finish_beams(self, group_id: int, sequence_ids: Sequence[int]) -> bool:
        found = super().finish_beams(group_id, sequence_ids)
        self._note("finish_beams", id=group_id, seqs=list(sequence_ids), ok=found)
        return found

    def fork(self, group_id: int, sequence_id: int) -> int:
        made = super().fork(group_id, sequence_id)
        known = self._positions.get(group_id)
        if known is not None:
            known[made] = _position_of(known, sequence_id)
        self._note("fork", id=group_id, seq=sequence_id, made=made)
        return made

    def preempt(self, group_id: int, mode: str) -> bool:
        found = super().preempt(group_id, mode)
        self._note("preempt", id=group_id, mode=mode, ok=found)
        return found

    def reset(self) -> None:
        super().reset()
        self._positions.clear()
        self._note("reset")

    def pin(self, pin_id: int, token_ids: Sequence[int], cache_root: str = "") -> int:
        held = super().pin(pin_id, token_ids, cache_root)
        if self.recording.is_open:
            walk = self._paths.walk(token_ids)
            self._pinned[pin_id] = walk.end
            root = {"root": self._number_of(cache_root)} if cache_root else {}
            self._note("pin", id=pin_id, p=_as_list(walk), held=held, **root)
        return held

    def unpin(self, pin_id: int) -> bool:
        found = super().unpin(pin_id)
        self._pinned.pop(pin_id, None)
        self._note("unpin", id=pin_id, ok=found)
        return found

    def reset_prefix_cache(self) -> None:
        super().reset_prefix_cache()
        self._note("reset_prefix_cache")

    def set_costs(self, costs: _core.PreemptionCosts) -> None:
        super().set_costs(costs)
        self._note("costs", **fields_of(costs))

    def quarantine(self) -> _core.Quarantine:
        done = super().quarantine()
        if done.found:
            self._note("quarantine", found=list(done.found))
            self.recording.end("an invariant broke, for which a replay has no reason")
        return done

    def _is_there(self, group_id: int) -> bool:
        try:
            return bool(self.sequences(group_id))
        except ValueError:
            return False

    def _note(self, kind: str, **fields: object) -> None:
        self.recording.write(kind, fields)

    def _note_events(
        self, events: _core.StepEvents, failed: list[int], candidates: Callable[[int], Iterable[tuple[int, float]]]
    ) -> None:
        event = _Update(self._paths, self._positions, candidates).of(events)
        if failed:
            event["bad"] = failed
        self.recording.write("update", event)
        self.recording.flush()
        if self._paths.num_tokens > self._sweep_at:
            self._forget()

    def _forget(self) -> None:
        """What neither the prefix cache nor a request nor a pin has any more: nothing could be found of it."""
        live = [position for known in self._positions.values() for position in known.values()]
        self._paths.keep(itertools.chain(live, self._pinned.values(), self._cached()))
        self._sweep_at = max(_MIN_TOKENS_TO_SWEEP, 2 * self._paths.num_tokens)

    def _cached(self) -> Iterator[Position]:
        if not self._caches:
            return
        blocks, parents, tokens = self.cached_blocks()
        places = {block: place for place, block in enumerate(blocks.tolist())}
        found: dict[int, Position] = {}
        for block in places:
            missing = [block]
            while missing:
                last = missing[-1]
                parent = int(parents[places[last]])
                if parent >= 0 and parent not in found:
                    missing.append(parent)
                    continue
                begin = found[parent] if parent >= 0 else self._paths.root
                end = self._paths.find(begin, tokens[places[last]].tolist())
                if end is None:
                    raise RuntimeError("the prefix cache holds tokens that were never recorded")
                found[missing.pop()] = end
        yield from found.values()

    def _number_of(self, root: str) -> int:
        """The same for the same salt within this recording; nobody can tell the salt from it."""
        return int.from_bytes(hashlib.blake2b(root.encode(), digest_size=7, key=self._key).digest(), "big")


class _Update:
    """One step's events, as they are recorded."""

    def __init__(
        self,
        paths: KnownPaths,
        positions: dict[int, dict[int | None, Position]],
        candidates: Callable[[int], Iterable[tuple[int, float]]],
    ) -> None:
        self._paths = paths
        self._positions = positions
        self._candidates = candidates
        self._draws: list[list[int]] = []
        self._new: list[list[int]] = []
        self._beams: list[tuple[int, float, int, int]] = []  # row, -logprob, token, as recorded
        self._moved: list[tuple[dict[int | None, Position], int, Position]] = []  # samples
        self._grown: dict[int, dict[int | None, Position]] = {}  # live beams

    def of(self, events: _core.StepEvents) -> dict[str, object]:
        for group, seq, token, row, _, _, reason, is_over, kind, parent, _, _ in EVENT.iter_unpack(events.packed):
            if token >= 0:
                self._take(group, seq, parent, token, row, reason, kind)
            if reason >= 0 and kind == 0:
                self._positions.get(group, {}).pop(seq, None)
            if is_over:
                self._positions.pop(group, None)
                self._grown.pop(group, None)
        for known, seq, end in self._moved:
            known[seq] = end
        self._positions.update(self._grown)
        parts = {"x": self._draws, "new": self._new, "beams": _in_order(self._beams), "ends": ends_of(events)}
        return {name: part for name, part in parts.items() if part}

    def _take(self, group: int, seq: int, parent: int, token: int, row: int, reason: int, kind: int) -> None:
        known = self._positions.get(group)
        if known is None:
            return
        if reason == _STOPPED:
            code = STOP
        else:
            begin = _position_of(known, parent)
            end, code, is_new = self._paths.step(begin, token)
            if is_new:
                self._new.append([code, begin[0].number, begin[1]])
            if kind == 0 and reason < 0:
                self._moved.append((known, seq, end))  # not yet: other samples may part from where the parent was
            elif reason < 0:
                self._grown.setdefault(group, {None: end})[seq] = end
        if kind != 0:
            logprob = next(logprob for best, logprob in self._candidates(row) if best == token)
            self._beams.append((row, -logprob, token, code))
        elif code != NEXT:
            self._draws.append([row, code])


def _position_of(known: dict[int | None, Position], sequence_id: int) -> Position:
    at = known.get(sequence_id)
    return known[None] if at is None else at


def _candidates(result: _core.SamplerOutput, row: int) -> list[tuple[int, float]]:
    _, _, _, ids, logprobs = result.scores(row, 1)
    return list(zip(ids.tolist(), logprobs.tolist(), strict=True))


def _in_order(beams: list[tuple[int, float, int, int]]) -> list[tuple[int, int, float]]:
    """(row, token as recorded, logprob), in the order that a search goes by. Of equal ones it takes the smaller token
    first: where the tokens of a replay would be in another order, the logprob is the next smaller one."""
    ordered: list[tuple[int, int, float]] = []
    before = (-1, 0.0, 0)
    for row, loss, _, code in sorted(beams):
        replayed = code if code != STOP else _NO_STRAND
        if row == before[0] and loss <= before[1] and replayed < before[2]:
            loss = -float(np.nextafter(np.float32(-before[1]), np.float32(-np.inf)))
        before = (row, max(loss, before[1]) if row == before[0] else loss, replayed)
        ordered.append((row, code, -loss))
    return ordered


def _as_list(walk: Walk) -> list[int]:
    return [walk.strand, walk.offset, walk.num_new, walk.new_strand]
