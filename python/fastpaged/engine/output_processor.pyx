# cython: language_level=3
"""OutputProcessor: a step's events and samples become RequestOutputs. The one loop over requests that runs in Python
at every step, hence Cython."""

import logging
import time
from dataclasses import replace

from cpython.bytes cimport PyBytes_AS_STRING

from fastpaged.engine.beam_answers import BeamAnswers, BeamEvent
from fastpaged.engine.engine_stats import RequestEnd
from fastpaged.engine.lazy_logprobs import LazyLogprobs, no_text, token_logprobs
from fastpaged.outputs import CompletionOutput, RequestMetrics, RequestOutput
from fastpaged.sampling_params import RequestOutputKind


cdef struct _Event:
    # A row of StepEvents.packed: PackedEvent of bind_plan.cc.
    unsigned long long group_id
    unsigned long long sequence_id
    long long token_id  # -1: none
    long long sample_row
    long long score_row
    long long num_scores
    long long finish_reason  # -1: unfinished
    long long group_finished
    long long kind  # of EventKind: sample, beam, hypothesis, result
    unsigned long long parent_id
    long long branch
    double score


# In the order of FinishReason. From _DEADLINE on they are heard of as stop_reason of an "abort".
cdef tuple _FINISH_REASONS = ("stop", "length", "abort", "error", "deadline", "queue_timeout")
cdef long long _DEADLINE = 4

include "stop_strings.pxi"
include "branch.pxi"
include "request_state.pxi"


cdef class OutputProcessor:
    """Knows every unfinished request by its group id. A request whose own text fails is ended with "error"; the others
    never notice."""

    cdef object _tokenizer, _scheduler, _eos_token_ids
    cdef dict _states        # group id -> _RequestState
    cdef dict _group_ids     # request id -> group id
    cdef long long _stream_interval, _block_bytes
    cdef readonly long long num_waiting, num_waiting_tokens
    cdef object _stats, _clock  # EngineStats, or None; seconds

    def __init__(self, tokenizer, scheduler, stream_interval=1, block_bytes=0, stats=None, clock=time.monotonic):
        self._stats = stats
        self._clock = clock
        self._tokenizer = tokenizer
        self._block_bytes = block_bytes
        self._stream_interval = stream_interval
        self._scheduler = scheduler
        self._eos_token_ids = tokenizer.eos_token_ids
        self._states = {}
        self._group_ids = {}
        self.num_waiting = self.num_waiting_tokens = 0

    def __len__(self):
        return len(self._states)

    def __contains__(self, request_id):
        return request_id in self._group_ids

    def request_ids(self):
        return {group_id: request_id for request_id, group_id in self._group_ids.items()}

    def request_id(self, group_id):
        cdef _RequestState state = self._states.get(group_id)
        return None if state is None else state.request.request_id

    def add(self, group_id, request, seeds, stream, final_only=False):
        self._states[group_id] = _RequestState(
            request, list(seeds), stream, self._tokenizer, final_only, self._stream_interval, self._clock()
        )
        (<_RequestState>self._states[group_id]).set_bill(self._scheduler, group_id, self._block_bytes)
        self._group_ids[request.request_id] = group_id
        self.num_waiting += 1
        self.num_waiting_tokens += len(request.prompt_token_ids)

    def has_begun(self, request_id):
        cdef object group_id = self._group_ids.get(request_id)
        return group_id is not None and (<_RequestState>self._states[group_id]).scheduled

    def described(self, group_id):
        cdef _RequestState state = self._states.get(group_id)
        if state is None:
            return None
        return state.request.request_id, len(state.request.prompt_token_ids) + state.num_tokens

    def abort(self, request_id, reason="abort"):
        cdef object group_id = self._group_ids.get(request_id)
        if group_id is None:
            return None
        cdef _RequestState state = self._states[group_id]
        self._scheduler.abort(group_id)
        state.end(reason)
        self._forget(group_id, state)
        return state.snapshot()

    def fail(self, group_ids):
        cdef list outputs = []
        cdef _RequestState state
        for group_id in group_ids:
            state = self._states.get(group_id)
            if state is not None:
                state.end("error")
                self._forget(group_id, state)
                outputs.append(state.snapshot())
        return outputs

    def note_plan(self, plan):
        cdef double now = self._clock()
        cdef _RequestState state
        for group_id in plan.preempted:
            state = self._states[group_id]
            state.num_preemptions += 1
        for group_id, num_tokens in plan.cached:
            state = self._states.get(group_id)
            if state is not None:
                state.num_cached = num_tokens
        for group_id in plan.let_in:
            state = self._states.get(group_id)
            if state is not None and not state.scheduled:
                self._note_let_in(state)
                state.scheduled = True
                state.scheduled_ts = now
                if self._stats is not None:
                    self._stats.note_let_in(len(state.request.prompt_token_ids), state.num_cached)

    def process(self, result, events):
        cdef double now = self._clock()
        cdef list outputs = []
        cdef list touched = []   # states with several branches that moved
        cdef dict searches = {}  # group id -> what its beams did
        cdef _RequestState state
        cdef bytes packed = events.packed
        if <size_t>len(packed) != <size_t>len(events) * sizeof(_Event):
            raise RuntimeError(f"{len(events)} events must be {sizeof(_Event)} bytes each, got {len(packed)} in all")
        cdef const _Event* event = <const _Event*>PyBytes_AS_STRING(packed)
        cdef const _Event* end = event + len(packed) // sizeof(_Event)
        while event < end:
            state = self._states.get(event.group_id)
            if state is not None:
                if state.plain and event.token_id >= 0 and event.finish_reason < 0:
                    self._note_tokens(state, 1, now)
                    state.branch_of(event).add_token(event.token_id)
                elif event.finish_reason >= _DEADLINE:
                    self._expire(event.group_id, state, <str>_FINISH_REASONS[event.finish_reason], outputs)
                elif state.beams is not None:
                    searches.setdefault(event.group_id, []).append(_beam_event(event))
                else:
                    self._process(state, event, result, now, outputs, touched)
            event += 1
        # Branches and beams of one request have moved together: one output shows them all.
        for state in touched:
            state.touched = False
            if state.is_due():
                outputs.append(state.snapshot())
        for group_id, happened in searches.items():
            self._search(group_id, happened, result, now, outputs)
        return outputs

    cdef _process(
        self, _RequestState state, const _Event* event, result, double now, list outputs, list touched
    ):
        try:
            self._apply(state, state.branch_of(event), event, result, now)
            if event.group_finished and not state.is_over():  # before its samples parted: a chunk of its prompt failed
                state.end(<str>_FINISH_REASONS[event.finish_reason])
        except Exception:
            self._fail(event.group_id, state)
        if state.is_over():
            self._forget(event.group_id, state)
        if state.several:
            if not state.touched:
                state.touched = True
                touched.append(state)
        elif state.is_due():
            outputs.append(state.snapshot())

    cdef _apply(self, _RequestState state, _Branch branch, const _Event* event, result, double now):
        cdef str reason = <str>_FINISH_REASONS[event.finish_reason] if event.finish_reason >= 0 else None
        cdef bint stopped = False
        if branch.finish_reason is not None:
            return
        if reason == "error":
            _log_no_token(state)
        if state.prompt_logprobs is not None and event.num_scores > 0:
            state.add_prompt_logprobs(result.scores(event.score_row, event.num_scores))
        if event.token_id >= 0:
            self._note_tokens(state, 1, now)
            branch.add_token(event.token_id)
            if state.sums:
                branch.add_logprobs(token_logprobs([event.token_id], result.scores(event.sample_row, 1)))
            if reason != "stop" or branch.shows_stop:
                stopped = branch.push_text(event.token_id)
            branch.due = not state.final_only and branch.is_at_interval()
        if reason is not None:
            stopped = branch.end_text()
        if stopped and reason != "error":
            branch.stop_reason = branch.stop_strings.found
            if reason is None:
                self._scheduler.finish(event.group_id, event.sequence_id)
            reason = "stop"
        elif reason == "stop" and (
            state.request.params.ignore_eos or event.token_id not in self._eos_token_ids
        ):
            branch.stop_reason = event.token_id
        if reason is not None:
            state.end_branch(branch, reason)

    cdef _search(self, object group_id, list happened, result, double now, list outputs):
        """What the beams of one request did."""
        cdef _RequestState state = self._states[group_id]
        try:
            for event in happened:
                if state.prompt_logprobs is not None and event.num_scores > 0:
                    state.add_prompt_logprobs(result.scores(event.score_row, event.num_scores))
                if event.finish_reason == "error":
                    _log_no_token(state)
            num_tokens = sum([event.token_id is not None for event in happened])
            if num_tokens > 0:
                self._note_tokens(state, num_tokens, now)
            stopped = state.beams.advance(happened, result)
            if state.beams.is_over:
                state.num_running = 0
            elif state.request.params.stop:  # the scheduler waits for it, even if there is none
                self._scheduler.finish_beams(group_id, stopped)
        except Exception:
            self._fail(group_id, state)
        if state.is_over():
            self._forget(group_id, state)
            outputs.append(state.snapshot())

    cdef _expire(self, object group_id, _RequestState state, str why, list outputs):
        """All of a request whose time was up; what else is said of its branches finds it gone."""
        state.end("abort", why)
        self._forget(group_id, state)
        outputs.append(state.snapshot())

    cdef _fail(self, object group_id, _RequestState state):
        """In the handler of what went wrong."""
        logging.getLogger(__name__).exception("request %r failed in output processing", state.request.request_id)
        self._scheduler.abort(group_id)
        state.end("error")

    cdef inline _note_tokens(self, _RequestState state, long long count, double now):
        if self._stats is not None:
            self._stats.note_tokens(count)
            if state.num_tokens == 0:
                self._stats.note_first_token(now - state.queued_ts)
            elif now > state.last_token_ts:  # branches that move together have waited once
                self._stats.note_next_token(now - state.last_token_ts)
        state.note_tokens(count, now)

    cdef _forget(self, object group_id, _RequestState state):
        """REQUIRES: it has ended, and its answers say how."""
        if not state.scheduled:
            self._note_let_in(state)
        if self._stats is not None:
            self._stats.note_finished(state.request, state.ending(self._clock()))
        del self._states[group_id]
        del self._group_ids[state.request.request_id]

    cdef _note_let_in(self, _RequestState state):
        """Or gone: it does not wait any more."""
        self.num_waiting -= 1
        self.num_waiting_tokens -= len(state.request.prompt_token_ids)


cdef _log_no_token(_RequestState state):
    logging.getLogger(__name__).error(
        "request %r failed: its logits held a NaN, or it leaves no token to choose", state.request.request_id
    )


cdef object _beam_event(const _Event* event):
    return BeamEvent(
        kind=event.kind,
        sequence_id=event.sequence_id,
        parent_id=event.parent_id,
        token_id=event.token_id if event.token_id >= 0 else None,
        sample_row=event.sample_row,
        score_row=event.score_row,
        num_scores=event.num_scores,
        finish_reason=<str>_FINISH_REASONS[event.finish_reason] if event.finish_reason >= 0 else None,
        group_finished=event.group_finished != 0,
        rank=event.branch,
        score=event.score,
    )
