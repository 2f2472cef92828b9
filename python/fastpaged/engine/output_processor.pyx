# cython: language_level=3
"""OutputProcessor: a step's events and samples become RequestOutputs. The one loop over requests that runs in Python
at every step, hence Cython."""

import logging
import time

from cpython.bytes cimport PyBytes_AS_STRING

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


cdef tuple _FINISH_REASONS = ("stop", "length", "abort", "error")  # in the order of FinishReason


cdef class _StopString:
    """How much of one string the text ends in: the automaton of Knuth, Morris and Pratt."""

    cdef readonly str text
    cdef readonly Py_ssize_t matched  # length of the longest proper prefix of `text` that the text so far ends in
    cdef list shorter                 # length of a matched prefix, less one -> the next shorter one

    def __init__(self, str text):
        self.text = text
        self.shorter = [0]
        cdef Py_ssize_t at
        for at in range(1, len(text)):  # the string is matched against itself
            self.advance(text[at])
            self.shorter.append(self.matched)
        self.matched = 0

    cdef bint advance(self, Py_UCS4 character):
        """Whether the text ends in the whole string now."""
        while self.text[self.matched] != character:
            if self.matched == 0:
                return False
            self.matched = self.shorter[self.matched - 1]
        self.matched += 1
        if self.matched < len(self.text):
            return False
        self.matched = self.shorter[self.matched - 1]
        return True


cdef class StopStrings:
    cdef list _strings
    cdef bint _included
    cdef str _holder           # what is held back is the beginning of this string,
    cdef Py_ssize_t _num_held  # of this length, and so it need not be kept
    cdef readonly object found

    def __init__(self, strings, bint included=False):
        self._strings = [_StopString(text) for text in strings]
        self._included = included
        self._holder = ""
        self._num_held = 0
        self.found = None

    @property
    def held(self):
        return self._holder[: self._num_held]

    cpdef str push(self, str text, bint may_stop=True):
        if self.found is not None:
            return ""
        cdef Py_ssize_t at
        cdef str shown
        for at in range(len(text)):
            if self._advance(text[at]) and may_stop:
                shown = self._first(text, self._num_held + at + 1 - (0 if self._included else len(self.found)))
                self._num_held = 0
                return shown
            self.found = None
        holder, num_held = self._longest_beginning()
        shown = self._first(text, self._num_held + len(text) - num_held)
        self._holder, self._num_held = holder, num_held
        return shown

    cpdef str finish(self):
        held = self.held
        self._num_held = 0
        return held

    cdef bint _advance(self, Py_UCS4 character):
        """Sets `found`. Every string sees every character."""
        cdef _StopString string
        for string in self._strings:
            if string.advance(character) and self.found is None:
                self.found = string.text
        return self.found is not None

    cdef str _first(self, str text, Py_ssize_t count):
        """The first characters of what was held and `text`."""
        if count <= self._num_held:
            return self._holder[:count]
        return self._holder[: self._num_held] + text[: count - self._num_held]

    cdef tuple _longest_beginning(self):
        """The string, and how much of it, that ends the text and may not be shown if the string is completed."""
        cdef _StopString string
        cdef str holder = ""
        cdef Py_ssize_t longest = 0
        if not self._included:
            for string in self._strings:
                if string.matched > longest:
                    holder, longest = string.text, string.matched
        return holder, longest


cdef class _RequestState:
    """What one running request has given so far; with deltas, since its last output."""

    cdef object request, seed, stream, token_text, cumulative_logprob, stop_reason
    cdef double scheduled_ts, first_token_ts, last_token_ts  # meaningful once scheduled, and with a token
    cdef bint scheduled, plain  # plain: tokens need nothing but to be kept
    cdef StopStrings stop_strings
    cdef list token_ids
    cdef list logprobs, prompt_logprobs  # of TokenLogprobs; the prompt's begin with None
    cdef object all_prompt_logprobs      # LazyLogprobs, once they are all known
    cdef str text
    cdef bint deltas, final_only, shows_stop
    cdef long long num_tokens, min_tokens, num_preemptions, num_cached, interval
    cdef double arrival_time, queued_ts

    def __init__(self, request, seed, stream, token_text, bint final_only, long long interval):
        params = request.params
        self.request = request
        self.seed = seed
        self.stream = stream
        self.token_text = no_text if stream is None else token_text
        self.final_only = final_only or params.output_kind is RequestOutputKind.FINAL_ONLY
        self.deltas = not self.final_only and params.output_kind is RequestOutputKind.DELTA
        self.shows_stop = params.include_stop_str_in_output
        self.stop_strings = StopStrings(params.stop, self.shows_stop) if params.stop else None
        self.stop_reason = None
        self.prompt_logprobs = None if request.num_prompt_logprobs is None else [None]
        self.all_prompt_logprobs = None
        self.token_ids = []
        self.text = ""
        self.logprobs = None if request.num_logprobs is None else []
        self.cumulative_logprob = None if request.num_logprobs is None else 0.0
        self.num_tokens = 0
        self.interval = interval if params.stream_interval is None else params.stream_interval
        self.min_tokens = params.min_tokens
        self.num_preemptions = 0
        self.num_cached = 0
        self.scheduled = False
        self.plain = self.final_only and stream is None and self.logprobs is None and self.prompt_logprobs is None
        self.arrival_time = time.time()
        self.queued_ts = time.monotonic()

    cdef void add_token(self, long long token_id, double now):
        if self.num_tokens == 0:
            self.first_token_ts = now
        self.last_token_ts = now
        self.num_tokens += 1
        self.token_ids.append(token_id)

    cdef add_logprobs(self, list logprobs):
        self.logprobs += logprobs
        self.cumulative_logprob += logprobs[0].logprob

    cdef add_prompt_logprobs(self, tuple scores):
        """scores: of the tokens that follow those that have theirs."""
        cdef Py_ssize_t begin = len(self.prompt_logprobs)
        self.prompt_logprobs += token_logprobs(self.request.prompt_token_ids[begin : begin + len(scores[0])], scores)

    cdef bint push_text(self, object token_id) except -1:
        """Whether a stop string ends the answer with this token."""
        if self.stream is not None:
            self._add_text(self.stream.push(token_id))
        return self.has_stopped()

    cdef bint end_text(self) except -1:
        """Shows what was held back. Whether that had a stop string in it."""
        if self.stream is not None:
            self._add_text(self.stream.finish())
        self.release()
        return self.has_stopped()

    cdef void release(self):
        if self.stop_strings is not None:
            self.text += self.stop_strings.finish()

    cdef bint has_stopped(self):
        return self.stop_strings is not None and self.stop_strings.found is not None

    cdef _add_text(self, str text):
        if self.stop_strings is not None:
            text = self.stop_strings.push(text, self.num_tokens > self.min_tokens)
        self.text += text

    cdef bint is_due(self):
        """Whether an output is wanted with the token that came: the first, and every so many from there."""
        return not self.final_only and (self.num_tokens - 1) % self.interval == 0

    cdef object snapshot(self, str finish_reason):
        """Lists that will grow are copied; those of a delta and of a finished request are handed over."""
        cdef bint finished = finish_reason is not None
        cdef bint handed_over = finished or self.deltas
        cdef object prompt_logprobs = self.shown_prompt_logprobs()
        completion = CompletionOutput(
            index=0,
            text=self.text,
            token_ids=self.token_ids if handed_over else self.token_ids[:],
            cumulative_logprob=self.cumulative_logprob,
            logprobs=None if self.logprobs is None else LazyLogprobs(self.logprobs, self.token_text),
            finish_reason=finish_reason,
            stop_reason=self.stop_reason,
            seed=self.seed,
        )
        if self.deltas:
            self.text = ""
            self.token_ids = []
            self.logprobs = None if self.logprobs is None else []
            if prompt_logprobs is not None:
                self.prompt_logprobs = self.all_prompt_logprobs = None
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.request.prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            prompt_logprobs=prompt_logprobs,
            outputs=[completion],
            finished=finished,
            metrics=self.metrics(),
            num_cached_tokens=self.num_cached,
        )

    cdef object shown_prompt_logprobs(self):
        if self.all_prompt_logprobs is None and self.prompt_logprobs is not None:
            if len(self.prompt_logprobs) == len(self.request.prompt_token_ids):
                self.all_prompt_logprobs = LazyLogprobs(self.prompt_logprobs, self.token_text)
        return self.all_prompt_logprobs

    cdef object metrics(self):
        return RequestMetrics(
            num_generation_tokens=self.num_tokens,
            num_preemptions=self.num_preemptions,
            arrival_time=self.arrival_time,
            queued_ts=self.queued_ts,
            scheduled_ts=self.scheduled_ts if self.scheduled else None,
            first_token_ts=self.first_token_ts if self.num_tokens > 0 else None,
            last_token_ts=self.last_token_ts if self.num_tokens > 0 else None,
            first_token_latency=self.first_token_ts - self.queued_ts if self.num_tokens > 0 else None,
        )


cdef class OutputProcessor:
    """Knows every unfinished request by its group id. A request whose own text fails is ended with "error"; the others
    never notice."""

    cdef object _tokenizer, _scheduler, _eos_token_ids
    cdef dict _states        # group id -> _RequestState
    cdef dict _group_ids     # request id -> group id
    cdef long long _stream_interval

    def __init__(self, tokenizer, scheduler, stream_interval=1):
        self._tokenizer = tokenizer
        self._stream_interval = stream_interval
        self._scheduler = scheduler
        self._eos_token_ids = tokenizer.eos_token_ids
        self._states = {}
        self._group_ids = {}

    def __len__(self):
        return len(self._states)

    def __contains__(self, request_id):
        return request_id in self._group_ids

    def add(self, group_id, request, seed, stream, final_only=False):
        self._states[group_id] = _RequestState(
            request, seed, stream, self._tokenizer.token_text, final_only, self._stream_interval
        )
        self._group_ids[request.request_id] = group_id

    def abort(self, request_id):
        cdef object group_id = self._group_ids.get(request_id)
        if group_id is None:
            return None
        cdef _RequestState state = self._states[group_id]
        self._forget(group_id, state)
        self._scheduler.abort(group_id)
        try:
            state.end_text()
        except Exception:
            logging.getLogger(__name__).exception("request %r: the end of its text failed", request_id)
            state.release()
        return state.snapshot("abort")

    def note_plan(self, plan):
        cdef double now = time.monotonic()
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
                state.scheduled = True
                state.scheduled_ts = now

    def process(self, result, events):
        cdef double now = time.monotonic()
        cdef list outputs = []
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
                    state.add_token(event.token_id, now)
                else:
                    self._process(state, event, result, now, outputs)
            event += 1
        return outputs

    cdef _process(self, _RequestState state, const _Event* event, result, double now, list outputs):
        # A request ends with the last of its sequences.
        cdef str name = <str>_FINISH_REASONS[event.finish_reason] if event.group_finished else None
        cdef bint shown
        if name == "error":
            logging.getLogger(__name__).error(
                "request %r failed: its logits held a NaN, or it leaves no token to choose", state.request.request_id
            )
        try:
            name = self._apply(state, event, name, result, now)
            shown = name is not None or (event.token_id >= 0 and state.is_due())
        except Exception:
            logging.getLogger(__name__).exception("request %r failed in output processing", state.request.request_id)
            self._scheduler.abort(event.group_id)
            state.release()
            name = "error"
            shown = True
        if name is not None:
            self._forget(event.group_id, state)
        if shown:
            outputs.append(state.snapshot(name))

    cdef str _apply(self, _RequestState state, const _Event* event, str finish_reason, result, double now):
        """The finish reason, which a stop string has a say in."""
        cdef bint stopped = False
        if state.prompt_logprobs is not None and event.num_scores > 0:
            state.add_prompt_logprobs(result.scores(event.score_row, event.num_scores))
        if event.token_id >= 0:
            state.add_token(event.token_id, now)
            if state.logprobs is not None:
                state.add_logprobs(token_logprobs([event.token_id], result.scores(event.sample_row, 1)))
            if finish_reason != "stop" or state.shows_stop:
                stopped = state.push_text(event.token_id)
        if finish_reason is not None:
            stopped = state.end_text()
        if finish_reason == "error":
            return finish_reason
        if stopped:
            state.stop_reason = state.stop_strings.found
            if finish_reason is None:
                self._scheduler.finish(event.group_id, event.sequence_id)
            return "stop"
        if finish_reason == "stop" and (
            state.request.params.ignore_eos or event.token_id not in self._eos_token_ids
        ):
            state.stop_reason = event.token_id
        return finish_reason

    cdef _forget(self, object group_id, _RequestState state):
        del self._states[group_id]
        del self._group_ids[state.request.request_id]
