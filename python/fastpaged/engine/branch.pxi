# One answer of a request. Part of output_processor.pyx.


cdef class _Branch:
    """What one answer has so far; with deltas, since it was last shown."""

    cdef object seed, stream, token_text, cumulative_logprob
    cdef readonly object finish_reason, stop_reason
    cdef object ended  # its last CompletionOutput: it is the same from then on
    cdef StopStrings stop_strings
    cdef list token_ids, logprobs  # of TokenLogprobs; None if there are none to show
    cdef str text
    cdef bint deltas, shows_stop, due
    cdef long long index, num_tokens, min_tokens, interval

    def __init__(self, params, long long index, seed, stream, StopStrings stop_strings, token_text, bint has_logprobs):
        self.index = index
        self.seed = seed
        self.stream = stream
        self.stop_strings = stop_strings
        self.token_text = token_text
        self.shows_stop = params.include_stop_str_in_output
        self.min_tokens = params.min_tokens
        self.token_ids = []
        self.text = ""
        self.logprobs = [] if has_logprobs else None
        self.cumulative_logprob = 0.0
        self.num_tokens = 0
        self.finish_reason = self.stop_reason = self.ended = None
        self.due = False

    cdef inline int add_token(self, long long token_id) except -1:
        self.num_tokens += 1
        self.token_ids.append(token_id)
        return 0

    cdef add_logprobs(self, list logprobs):
        if self.logprobs is not None:
            self.logprobs += logprobs
        self.cumulative_logprob += logprobs[0].logprob

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

    cdef release(self):
        if self.stop_strings is not None:
            self.text += self.stop_strings.finish()

    cdef inline bint has_stopped(self) noexcept:
        return self.stop_strings is not None and self.stop_strings.found is not None

    cdef _add_text(self, str text):
        if self.stop_strings is not None:
            text = self.stop_strings.push(text, self.num_tokens > self.min_tokens)
        self.text += text

    cdef finish(self, str reason):
        self.finish_reason = reason
        self.due = True

    cdef inline bint is_at_interval(self) noexcept:
        """Whether an output is wanted with the token that came: the first, and every so many from there."""
        return (self.num_tokens - 1) % self.interval == 0

    cdef object completion(self, bint shows_sum):
        """Lists that will grow are copied; those of a delta and of an answer that has ended are handed over."""
        if self.ended is not None:
            return self.ended
        cdef bint handed_over = self.deltas or self.finish_reason is not None
        completion = CompletionOutput(
            index=self.index,
            text=self.text,
            token_ids=self.token_ids if handed_over else self.token_ids[:],
            cumulative_logprob=self.cumulative_logprob if shows_sum else None,
            logprobs=None if self.logprobs is None else LazyLogprobs(self.logprobs, self.token_text),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            seed=self.seed,
        )
        self.due = False
        if self.finish_reason is not None:
            self.ended = completion
        elif self.deltas:
            self.text = ""
            self.token_ids = []
            self.logprobs = None if self.logprobs is None else []
        return completion
