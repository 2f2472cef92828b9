# What one running request has given so far. Part of output_processor.pyx.


cdef class _RequestState:
    cdef object request, token_text
    cdef list branches       # of _Branch, by index; none of a beam search
    cdef _Branch first
    cdef object beams        # BeamAnswers; None: it samples
    cdef list prompt_logprobs            # of TokenLogprobs; they begin with None
    cdef object all_prompt_logprobs      # LazyLogprobs, once they are all known
    cdef bint plain, final_only, sums, ranked, several, touched  # plain: tokens need nothing but to be kept
    cdef long long num_running, num_tokens, num_preemptions, num_cached
    cdef double scheduled_ts, first_token_ts, last_token_ts  # meaningful once scheduled, and with a token
    cdef bint scheduled
    cdef double arrival_time, queued_ts
    cdef object scheduler, group_id  # which know what preemptions have cost it
    cdef long long block_bytes

    def __init__(self, request, list seeds, stream, tokenizer, bint final_only, long long interval, double now):
        params = request.params
        self.request = request
        self.token_text = no_text if stream is None else tokenizer.token_text
        self.ranked = not params.use_beam_search and len(seeds) > params.n
        # What is best is known at the end.
        self.final_only = (
            final_only or self.ranked or params.use_beam_search or params.output_kind is RequestOutputKind.FINAL_ONLY
        )
        self.sums = request.num_logprobs is not None or self.ranked
        self.prompt_logprobs = None if request.num_prompt_logprobs is None else [None]
        self.all_prompt_logprobs = None
        self.branches = []
        self.first = self.beams = None
        self.several = False
        stops = StopStrings(params.stop, params.include_stop_str_in_output) if params.stop else None
        if params.use_beam_search:
            self.beams = BeamAnswers(request, stream, stops, self.token_text, tokenizer.eos_token_ids)
        else:
            self._add_branches(seeds, stream, stops, interval)
        self.num_running = len(seeds)
        self.num_tokens = 0
        self.num_preemptions = self.num_cached = 0
        self.scheduled = self.touched = False
        self.plain = (
            self.final_only and self.beams is None and stream is None and not self.sums and self.prompt_logprobs is None
        )
        self.arrival_time = time.time()
        self.queued_ts = now

    cdef set_bill(self, scheduler, group_id, long long block_bytes):
        self.scheduler = scheduler
        self.group_id = group_id
        self.block_bytes = block_bytes

    cdef _add_branches(self, list seeds, stream, StopStrings stops, long long interval):
        params = self.request.params
        cdef bint has_logprobs = self.request.num_logprobs is not None
        cdef _Branch branch
        for index, seed in enumerate(seeds):
            if index > 0:  # each goes its own way from here
                stream = None if stream is None else stream.copy()
                stops = None if stops is None else stops.copy()
            branch = _Branch(params, index, seed, stream, stops, self.token_text, has_logprobs)
            branch.deltas = not self.final_only and params.output_kind is RequestOutputKind.DELTA
            branch.interval = interval if params.stream_interval is None else params.stream_interval
            self.branches.append(branch)
        self.first = self.branches[0]
        self.several = len(seeds) > 1

    cdef inline _Branch branch_of(self, const _Event* event):
        return self.first if event.branch == 0 else <_Branch?>self.branches[event.branch]

    cdef inline void note_tokens(self, long long count, double now) noexcept:
        if self.num_tokens == 0:
            self.first_token_ts = now
        self.last_token_ts = now
        self.num_tokens += count

    cdef add_prompt_logprobs(self, tuple scores):
        """scores: of the tokens that follow those that have theirs."""
        cdef Py_ssize_t begin = len(self.prompt_logprobs)
        self.prompt_logprobs += token_logprobs(self.request.prompt_token_ids[begin : begin + len(scores[0])], scores)

    cdef end_branch(self, _Branch branch, str reason):
        branch.finish(reason)
        self.num_running -= 1

    cdef inline bint is_over(self) noexcept:
        return self.num_running == 0

    cdef inline bint is_due(self) except -1:
        """Whether there is something to show."""
        if self.is_over():
            return True
        return not self.final_only and (self._is_one_due() if self.several else self.first.due)

    cdef bint _is_one_due(self) except -1:
        cdef _Branch branch
        for branch in self.branches:
            if branch.due:
                return True
        return False

    cdef end(self, str reason, object stop_reason=None):
        """At once, all that runs; what was held back is shown as far as it can be."""
        cdef _Branch branch
        if self.beams is not None:
            self.beams.end(reason, stop_reason)
        for branch in self.branches:
            if branch.finish_reason is None:
                self._end_text_of(branch, reason == "error")
                branch.stop_reason = stop_reason
                branch.finish(reason)
        self.num_running = 0

    cdef _end_text_of(self, _Branch branch, bint failed):
        """failed: there is no more text than there is."""
        if not failed:
            try:
                branch.end_text()
                return
            except Exception:
                name = self.request.request_id
                logging.getLogger(__name__).exception("request %r: the end of its text failed", name)
        branch.release()

    cdef object ending(self, double now):
        """RequestEnd. REQUIRES: it is over."""
        cdef _Branch branch
        cdef bint begun = self.num_tokens > 0
        cdef long long longest = 0
        if self.beams is None:
            ends = [(branch.finish_reason, branch.stop_reason) for branch in self.branches]
            for branch in self.branches:
                longest = max(longest, branch.num_tokens)
        else:
            ends = [(answer.finish_reason, answer.stop_reason) for answer in self.beams.completions]
            longest = max([len(answer.token_ids) for answer in self.beams.completions], default=0)
        reason, stop_reason = ends[0] if ends else ("error", None)
        for bad in ("abort", "error"):
            for found, why in ends:
                if found == bad:
                    reason, stop_reason = found, why
        return RequestEnd(
            reason=reason,
            stop_reason=stop_reason,
            num_tokens=self.num_tokens,
            num_longest=longest,
            num_cached=self.num_cached,
            num_preemptions=self.num_preemptions,
            queued=self.queued_ts,
            scheduled=self.scheduled_ts if self.scheduled else None,
            first=self.first_token_ts if begun else None,
            last=self.last_token_ts if begun else None,
            now=now,
        )

    cdef object snapshot(self):
        prompt_logprobs = self._shown_prompt_logprobs()
        outputs = self._completions()
        if self.first is not None and self.first.deltas and prompt_logprobs is not None:
            self.prompt_logprobs = self.all_prompt_logprobs = None
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.request.prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            prompt_logprobs=prompt_logprobs,
            outputs=outputs,
            finished=self.is_over(),
            metrics=self._metrics(),
            num_cached_tokens=self.num_cached,
        )

    cdef list _completions(self):
        cdef _Branch branch
        if self.beams is not None:
            return self.beams.completions
        if self.ranked:
            return self._best()
        shown = []
        for branch in self.branches:
            if branch.due or not branch.deltas:
                shown.append(branch.completion(self.sums))
        return shown

    cdef list _best(self):
        """The likeliest n, those that failed behind all others."""
        cdef _Branch branch
        order = []
        for branch in self.branches:
            order.append((branch.finish_reason == "error", -branch.cumulative_logprob, branch.index))
        order.sort()
        shown = []
        for rank, (_, _, index) in enumerate(order[: self.request.params.n]):
            branch = self.branches[index]
            shown.append(replace(branch.completion(self.request.num_logprobs is not None), index=rank))
        return shown

    cdef object _shown_prompt_logprobs(self):
        if self.all_prompt_logprobs is None and self.prompt_logprobs is not None:
            if len(self.prompt_logprobs) == len(self.request.prompt_token_ids):
                self.all_prompt_logprobs = LazyLogprobs(self.prompt_logprobs, self.token_text)
        return self.all_prompt_logprobs

    cdef object _metrics(self):
        cdef long long num_recomputed = 0, num_bytes = 0
        # Without a preemption it may have been recomputed after a step that failed: asked for once, at the end.
        if self.num_preemptions > 0 or self.is_over():
            cost = self.scheduler.request_cost(self.group_id)
            num_recomputed = cost.num_tokens_recomputed
            num_bytes = (cost.num_blocks_swapped_out + cost.num_blocks_swapped_in) * self.block_bytes
        return RequestMetrics(
            num_generation_tokens=self.num_tokens,
            num_preemptions=self.num_preemptions,
            num_tokens_recomputed=num_recomputed,
            num_bytes_swapped=num_bytes,
            arrival_time=self.arrival_time,
            queued_ts=self.queued_ts,
            scheduled_ts=self.scheduled_ts if self.scheduled else None,
            first_token_ts=self.first_token_ts if self.num_tokens > 0 else None,
            last_token_ts=self.last_token_ts if self.num_tokens > 0 else None,
            first_token_latency=self.first_token_ts - self.queued_ts if self.num_tokens > 0 else None,
        )
