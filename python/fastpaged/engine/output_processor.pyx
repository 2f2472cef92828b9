# cython: language_level=3
"""OutputProcessor: a step's events and samples become RequestOutputs. The one loop over requests that runs in Python
at every step, hence Cython."""

import logging
import time

from fastpaged.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput


cdef class _RequestState:
    """What one running request has given so far."""

    cdef object request, seed, stream, logprobs, cumulative_logprob
    cdef object scheduled_ts, first_token_ts, last_token_ts
    cdef list token_ids
    cdef str text
    cdef bint final_only
    cdef long long num_preemptions
    cdef double arrival_time, queued_ts

    def __init__(self, request, seed, stream, bint final_only):
        self.request = request
        self.seed = seed
        self.stream = stream
        self.final_only = final_only
        self.token_ids = []
        self.text = ""
        self.logprobs = None if request.num_logprobs is None else []
        self.cumulative_logprob = None if request.num_logprobs is None else 0.0
        self.num_preemptions = 0
        self.arrival_time = time.time()
        self.queued_ts = time.monotonic()

    cdef void add_token(self, object token_id, double now):
        if self.first_token_ts is None:
            self.first_token_ts = now
        self.last_token_ts = now
        self.token_ids.append(token_id)

    cdef object snapshot(self, str finish_reason):
        """A running request's lists are copied; a finished one's are handed over."""
        cdef bint finished = finish_reason is not None
        completion = CompletionOutput(
            index=0,
            text=self.text,
            token_ids=self.token_ids if finished else self.token_ids[:],
            cumulative_logprob=self.cumulative_logprob,
            logprobs=self.logprobs if finished or self.logprobs is None else self.logprobs[:],
            finish_reason=finish_reason,
            stop_reason=None,
            seed=self.seed,
        )
        metrics = RequestMetrics(
            num_generation_tokens=len(self.token_ids),
            num_preemptions=self.num_preemptions,
            arrival_time=self.arrival_time,
            queued_ts=self.queued_ts,
            scheduled_ts=self.scheduled_ts,
            first_token_ts=self.first_token_ts,
            last_token_ts=self.last_token_ts,
            first_token_latency=None if self.first_token_ts is None else self.first_token_ts - self.queued_ts,
        )
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.request.prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            outputs=[completion],
            finished=finished,
            metrics=metrics,
        )


cdef class OutputProcessor:
    """Knows every unfinished request by its group id. A request whose own text fails is ended with "error"; the others
    never notice."""

    cdef object _tokenizer, _end_request
    cdef dict _states        # group id -> _RequestState
    cdef dict _group_ids     # request id -> group id
    cdef set _never_scheduled  # group ids
    cdef int _num_with_logprobs

    def __init__(self, tokenizer, end_request):
        self._tokenizer = tokenizer
        self._end_request = end_request
        self._states = {}
        self._group_ids = {}
        self._never_scheduled = set()
        self._num_with_logprobs = 0

    def __len__(self):
        return len(self._states)

    def __contains__(self, request_id):
        return request_id in self._group_ids

    def add(self, group_id, request, seed, stream, final_only=False):
        self._states[group_id] = _RequestState(request, seed, stream, final_only)
        self._group_ids[request.request_id] = group_id
        self._never_scheduled.add(group_id)
        self._num_with_logprobs += request.num_logprobs is not None

    def abort(self, request_id):
        cdef object group_id = self._group_ids.get(request_id)
        if group_id is None:
            return None
        cdef _RequestState state = self._states[group_id]
        self._forget(group_id, state)
        self._end_request(group_id)
        return state.snapshot("abort")

    def note_plan(self, plan):
        cdef double now = time.monotonic()
        cdef _RequestState state
        for group_id in plan.preempted:
            state = self._states[group_id]
            state.num_preemptions += 1
        if self._never_scheduled:
            for group_id, _, _ in plan.scheduled:
                if group_id in self._never_scheduled:
                    self._never_scheduled.discard(group_id)
                    state = self._states[group_id]
                    state.scheduled_ts = now

    def process(self, result, events):
        cdef double now = time.monotonic()
        cdef list outputs = []
        cdef _RequestState state
        # One copy of the arrays a step, and only when somebody asked.
        cdef object logprobs = result.logprobs if self._num_with_logprobs else None
        cdef object ranks = result.ranks if self._num_with_logprobs else None
        for event in events:
            group_id = event.group_id
            state = self._states.get(group_id)
            if state is None:
                continue
            # A request ends with the last of its sequences.
            name = event.finish_reason.name.lower() if event.group_finished else None
            if name == "error":
                logging.getLogger(__name__).error("request %r failed: its logits held a NaN", state.request.request_id)
            try:
                self._apply(state, event, name, result, logprobs, ranks, now)
            except Exception:
                logging.getLogger(__name__).exception("request %r failed in output processing", state.request.request_id)
                self._end_request(group_id)
                name = "error"
            if name is not None:
                self._forget(group_id, state)
            if name is not None or not state.final_only:
                outputs.append(state.snapshot(name))
        return outputs

    cdef _apply(self, _RequestState state, event, str finish_reason, result, logprobs, ranks, double now):
        token_id = event.token_id
        if token_id is not None:
            state.add_token(token_id, now)
            if state.logprobs is not None:
                self._add_logprobs(state, token_id, event.sample_row, result, logprobs, ranks)
            if finish_reason != "stop":  # the token that ends an answer is no part of its text
                state.text += state.stream.push(token_id)
        if finish_reason is not None:
            state.text += state.stream.finish()

    cdef _add_logprobs(self, _RequestState state, token_id, row, result, logprobs, ranks):
        token_text = self._tokenizer.token_text
        cdef double logprob = logprobs[row]
        cdef dict entry = {token_id: Logprob(logprob, int(ranks[row]), token_text(token_id))}
        for position, (other_id, other) in enumerate(result.top_logprobs(row)):
            if other_id != token_id:
                entry[other_id] = Logprob(other, position + 1, token_text(other_id))
        state.logprobs.append(entry)
        state.cumulative_logprob += logprob

    cdef _forget(self, group_id, _RequestState state):
        del self._states[group_id]
        del self._group_ids[state.request.request_id]
        self._never_scheduled.discard(group_id)
        self._num_with_logprobs -= state.request.num_logprobs is not None
