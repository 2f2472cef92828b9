"""LLMEngine: requests in, one step at a time, outputs out."""

from __future__ import annotations

import logging
import random
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, cast

from fastpaged import _core
from fastpaged.engine.admission import Admission, EngineRequest, Prompt
from fastpaged.engine.clock import Clock
from fastpaged.engine.containment import Containment
from fastpaged.engine.core_params import core_params, seeds_of
from fastpaged.engine.default_params import default_params
from fastpaged.engine.deferred_signals import DeferredSignals
from fastpaged.engine.engine_stats import EngineStats
from fastpaged.engine.exclusive import Exclusive
from fastpaged.engine.make_scheduler import make_scheduler, max_pinned_blocks
from fastpaged.engine.no_tokenizer import NoTokenizer
from fastpaged.engine.output_processor import OutputProcessor
from fastpaged.engine.phase_watch import COMPUTE, COPY, OUTPUT, SCHEDULE, UPDATE, PhaseWatch
from fastpaged.engine.pinned_prefixes import PinnedPrefixes
from fastpaged.engine.preemptions import Preemptions
from fastpaged.engine.queue_limits import QueueLimits
from fastpaged.engine.recording_file import RecordingFile
from fastpaged.engine.request_terms import RequestTerms, point_in_time
from fastpaged.errors import (
    EngineClosedError,
    InvalidRequestError,
    ModelFormatError,
    ModelNotFoundError,
    QueueOverflowError,
)
from fastpaged.executor.in_process import InProcessExecutor
from fastpaged.kv_events import KVEvents, kv_events_of
from fastpaged.kv_snapshot import KVSnapshot, KVSplit, split_of
from fastpaged.sampling_params import SamplingParams
from fastpaged.start_up import StartUp
from fastpaged.tokenizer import load_tokenizer
from fastpaged.weights.hub import Hub
from fastpaged.weights.local_model import local_model
from fastpaged.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastpaged.config import EngineConfig
    from fastpaged.engine.preemption_costs import PreemptionCosts
    from fastpaged.outputs import RequestOutput
    from fastpaged.progress import ProgressCallback
    from fastpaged.tokenizer import Tokenizer

# Drawn seeds stay below 2**53, so that a reader of JSON with doubles for numbers can give one back unchanged.
_SEED_BITS = 53


class LLMEngine:
    """One model on this process's CPU, and the requests in flight. For one thread at a time: a second one in step(),
    enqueue(), abort_request() or close() is an EngineBusyError, and changes nothing. prepare() is free for all.

    Raises ModelNotFoundError, ModelFormatError, or ValueError for a bad config.
    """

    def __init__(self, config: EngineConfig, *, progress: ProgressCallback | None = None) -> None:
        start_up = StartUp()
        with start_up.phase("finding the model"):
            place = _place(config, config.model, config.revision, without_weights=config.load_format == "dummy")
            params = default_params(config, place)
        worker = Worker(replace(config, model=place, revision=None), progress, start_up)
        try:
            with start_up.phase("making the tokenizer"):
                tokenizer = _tokenizer(config, place)
            self._assemble(config, worker, tokenizer)
            self.default_sampling_params = params
            start_up.log(
                f"{config.model} ({worker.model_config.architecture}, {worker.dtype}, {worker.device.isa}, "
                f"{worker.device.num_threads} threads, {worker.num_blocks} KV blocks of {config.block_size} tokens"
                f"{worker.kv_memory.words})"
            )
        except BaseException:
            worker.keep_no_weights()
            worker.close()
            raise

    @classmethod
    def with_parts(cls, config: EngineConfig, worker: Worker, tokenizer: Tokenizer) -> LLMEngine:
        """An engine around a worker that stands already; it is the engine's to close from then on."""
        engine = cls.__new__(cls)
        engine._assemble(config, worker, tokenizer)
        return engine

    def _assemble(self, config: EngineConfig, worker: Worker, tokenizer: Tokenizer) -> None:
        self.config = config
        self.worker = worker
        self.tokenizer = tokenizer
        self.default_sampling_params = SamplingParams()  # of requests that give none
        self.clock = Clock()  # of deadlines, of the scheduler, and of what steps take
        self._recording = None if config.record is None else RecordingFile(config.record, self.clock)
        self.scheduler = make_scheduler(config, worker, self._recording)
        self._executor = InProcessExecutor(worker, _core.BatchBuilder(self.scheduler), self.clock)
        self.stats = None if config.disable_log_stats else EngineStats(worker.max_model_len)
        self._outputs = OutputProcessor(
            tokenizer, self.scheduler, config.stream_interval, worker.block_bytes, self.stats, self.clock.seconds
        )
        by_cost = config.preemption_mode == "auto"
        self.preemptions = Preemptions(self.scheduler, worker, self.clock, by_cost=by_cost)
        self._admission = Admission(
            tokenizer,
            vocab_size=worker.model_config.vocab_size,
            max_model_len=worker.max_model_len,
            num_blocks=worker.num_blocks,
            block_size=config.block_size,
            max_logprobs=config.max_logprobs,
            max_branches=min(config.max_num_seqs, config.max_num_batched_tokens),
            scheduling_policy=config.scheduling_policy,
            queue_timeout=config.queue_timeout,
        )
        self._queue_limits = QueueLimits.of(config)
        self._next_group_id = 0
        self._num_seeds_drawn = 0
        self._watch = PhaseWatch(self.clock)
        self._containment = Containment(self.scheduler, self._outputs.request_id, self.clock)
        self.on_planned: Callable[[], None] | None = None  # called in each step between planning and computing
        # With async_scheduling the outputs of a step are made while the next one is computed. What happens to requests
        # meanwhile reaches the scheduler at once: it passes over what the plan holds of those that have gone.
        self.overlaps_steps = config.async_scheduling
        self._in_flight: _core.SchedulerOutput | None = None
        self.plan_under_way: _core.SchedulerOutput | None = None  # that of the last step
        self._closed = False
        self._exclusive = Exclusive("this engine")
        self._pins = PinnedPrefixes(
            self.scheduler,
            self._admission,
            tokenizer,
            self._exclusive,
            block_size=config.block_size,
            max_blocks=max_pinned_blocks(config, worker),
        )

    def step(self) -> list[RequestOutput]:
        """Plans, computes, samples and reports one step. Nothing to do: an empty list.

        A broken invariant of the scheduler fails the requests that it concerns, with finish_reason "error", and no
        other.

        A step is whole: Ctrl-C during it raises KeyboardInterrupt after it, and what it reported is then lost to the
        caller (with output_kind DELTA for good), but not to abort_request() or to later steps.
        """
        if not self.has_unfinished_requests():
            return []
        with self._exclusive, DeferredSignals():
            self._watch.begin()
            self.plan_under_way = None
            self._pins.expire()
            plan = result = None
            broken: list[int] = []  # requests
            try:
                plan, result = self._computed()
                events = self.scheduler.update(plan, result)
                self._watch.end(UPDATE)
            except (RuntimeError, ValueError) as error:
                done = self._containment.contain(error)
                events, broken = done.events, done.failed
            if self.overlaps_steps and self.scheduler.has_unfinished():
                broken = broken + self._start_next()
            outputs = self._outputs.process(result, events) + self._outputs.fail(broken)
            if self._in_flight is None:
                outputs += self._outputs.fail(self._containment.look())
            else:
                self.preemptions.note_return()
            self._watch.end(OUTPUT)
            self._note_step(plan)
            return outputs

    def _note_step(self, plan: _core.SchedulerOutput | None) -> None:
        if self.stats is not None:
            num_tokens = 0 if plan is None else plan.num_tokens
            costs = self.scheduler.stats
            self.stats.note_step(num_tokens, self._watch.seconds, costs, self.worker.block_bytes)
            self._note_tables()

    def _note_tables(self) -> None:
        if self.stats is not None:
            self.stats.note_tables(self.scheduler, len(self._outputs), self._outputs.num_waiting)

    def _computed(self) -> tuple[_core.SchedulerOutput, _core.SamplerOutput]:
        """The plan in flight, or else a new one, and what came of it."""
        if self._in_flight is None:
            self.plan_under_way = plan = self._planned()
            result = self._executor.run(plan)
            self._watch.end(COMPUTE, of_which_copying=self._executor.copying_time)
        else:
            self.plan_under_way = plan = self._in_flight
            self._in_flight = None
            self.preemptions.note_call()
            result = self._executor.finish()
            self._watch.end(COMPUTE)
        self.preemptions.note_step(plan, self._executor.copying_time)
        return plan, result

    def blamed(self) -> list[str]:
        """Whose step it was that failed: the requests in its plan, and those whose end came in it and was not reported.
        Empty if it failed before there was a plan."""
        plan = self.plan_under_way
        if plan is None:
            return []
        groups = {group_id for group_id, _, _ in plan.scheduled}
        names = self._outputs.request_ids()
        return [name for group_id, name in names.items() if group_id in groups or not self._containment.knows(group_id)]

    def _start_next(self) -> list[int]:
        """Requests for which an invariant broke. Anything else that fails here fails again, and is raised, where the
        next step() plans anew."""
        try:
            plan = self._planned()
            self._executor.start(plan)
            self._watch.end(COPY)
        except Exception as error:
            with suppress(Exception):
                return self._containment.contain(error).failed
            logging.getLogger(__name__).warning("a step could not be started; it is planned anew", exc_info=True)
        else:
            self._in_flight = plan
        return []

    def _planned(self) -> _core.SchedulerOutput:
        plan = self.scheduler.schedule(self.clock())
        self._watch.end(SCHEDULE)
        self._outputs.note_plan(plan)
        if self.on_planned is not None:
            self.on_planned()
        self.preemptions.note_plan(plan, self._outputs.described)
        return plan

    @property
    def preemption_costs(self) -> PreemptionCosts:
        """By which preemption_mode="auto" chooses between recomputing and swapping: of copies as measured at the
        start, and of both as steps have taken since."""
        return self.preemptions.costs

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        final_only: bool = False,
        priority: int = 0,
        deadline: float | None = None,
        queue_timeout: float | None = None,
    ) -> None:
        """Queues a request. A refused one (InvalidRequestError, QueueOverflowError) leaves nothing behind.

        prompt: a string, token ids, or {"prompt": str, "prompt_token_ids": ids} with either key or both; a "cache_salt"
            in it, a string, has it share prefixes with requests of the same one alone.
        params.max_tokens beyond the rest of the context is cut to it.
        final_only: step() reports the request once, when it has finished.
        priority, deadline, queue_timeout: see RequestTerms. A request whose time is up ends with finish_reason "abort"
            and stop_reason "deadline" or "queue_timeout".
        """
        request = self.prepare(
            request_id, prompt, params, priority=priority, deadline=deadline, queue_timeout=queue_timeout
        )
        self.enqueue(request, final_only=final_only)

    def prepare(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        deadline: float | None = None,
        queue_timeout: float | None = None,
    ) -> EngineRequest:
        """Checks and tokenises a request without queueing it."""
        self._check_open()
        return self._admission.admit(request_id, prompt, params, RequestTerms(priority, deadline, queue_timeout))

    def num_ops_run(self) -> int:
        """Ops of forward passes that have ended, ever. Any thread may ask, while one is computed too."""
        return self.worker.num_ops_run

    def now_ns(self) -> int:
        """By the clock of arrivals and deadlines, which any thread may read."""
        return self.clock()

    def queue_overflow(self, num_tokens: int) -> QueueOverflowError | None:
        """Why enqueue() would refuse a request with a prompt of so many tokens; None: it would not. Any thread may
        ask, and what it hears may be the past."""
        outputs = self._outputs
        return self._queue_limits.overflow(outputs.num_waiting, outputs.num_waiting_tokens, num_tokens)

    def enqueue(self, request: EngineRequest, *, final_only: bool = False, arrival_ns: int | None = None) -> None:
        """Queues what prepare() returned. QueueOverflowError if too much waits already.

        arrival_ns: when it came, by now_ns(); None: now. Its time is counted from then.
        """
        self._check_open()
        overflow = self.queue_overflow(len(request.prompt_token_ids))
        if overflow is not None:
            if self.stats is not None:
                self.stats.note_rejected("queue_full")
            raise overflow
        if request.request_id in self._outputs:
            raise InvalidRequestError(f"request_id must be new, got {request.request_id!r}, which is still unfinished")
        params = request.params
        draws_seed = params.seed is None and not params.greedy and not params.use_beam_search
        seed = self._draw_seed() if draws_seed else params.seed
        stream = (
            self.tokenizer.text_stream(request.prompt_token_ids, skip_special_tokens=params.skip_special_tokens)
            if params.detokenize
            else None
        )
        num_samples = 1 if params.use_beam_search else params.num_branches
        terms, arrival = request.terms, self.clock() if arrival_ns is None else arrival_ns
        with self._exclusive, DeferredSignals():
            group_id = self._next_group_id
            self.scheduler.add(
                group_id,
                request.prompt_token_ids,
                core_params(request, seed),
                request.max_tokens,
                request.stop_token_ids,
                num_samples=num_samples,
                cache_root=request.cache_salt,
                skip_prefix_cache=bool(params.skip_reading_prefix_cache),
                priority=terms.priority,
                deadline_ns=point_in_time(arrival, terms.deadline),
                queue_deadline_ns=point_in_time(arrival, terms.queue_timeout),
            )
            self._outputs.add(group_id, request, seeds_of(seed, num_samples), stream, final_only)
            self._next_group_id += 1
            self._num_seeds_drawn += draws_seed
            if self.stats is not None:
                self.stats.note_started()
                self._note_tables()

    def abort_request(self, request_id: str, *, reason: Literal["abort", "error"] = "abort") -> RequestOutput | None:
        """Ends a request in any state and frees its blocks at once.

        Returns it as it stood, with this finish_reason; None if it is not (or no longer) here, which is no error.
        """
        self._check_open()
        if not isinstance(request_id, str):
            raise InvalidRequestError(f"request_id must be a string, got {type(request_id).__name__}")
        with self._exclusive, DeferredSignals():
            output = self._outputs.abort(request_id, reason)
            self._note_tables()
            return output

    @property
    def pins(self) -> PinnedPrefixes:
        """The prefixes that are pinned. What is to be pinned is held, then computed as a request, then given its time:
        see LLM.pin_prefix()."""
        self._check_open()
        return self._pins

    def reset_prefix_cache(self) -> bool:
        """Forgets every cached prefix: True. Requests in flight go on with what they have, and no later one finds it;
        pinned prefixes stay pinned, and are kept again once a request has computed them."""
        self._check_open()
        with self._exclusive, DeferredSignals():
            self.scheduler.reset_prefix_cache()
        return True

    def kv_snapshot(self) -> KVSnapshot:
        """Who holds what of the KV memory, block by block, between two steps: about a microsecond a block and a holder.
        With async_scheduling a step may be under way."""
        self._check_open()
        with self._exclusive, DeferredSignals():
            return KVSnapshot.of(self.scheduler.snapshot(), self._outputs.request_ids())

    def kv_splits(self) -> dict[str, KVSplit]:
        """What the slots of each tier ("device", "host") are for: kv_snapshot()'s splits alone."""
        self._check_open()
        with self._exclusive, DeferredSignals():
            device, host = self.scheduler.slot_splits()
            return {"device": split_of(device), "host": split_of(host)}

    def kv_events(self) -> KVEvents:
        """What became of the prefix cache's contents since the last call. InvalidRequestError without kv_events."""
        self._check_open()
        if not self.config.kv_events:
            raise InvalidRequestError("kv_events() needs an engine made with kv_events=True")
        with self._exclusive, DeferredSignals():
            return kv_events_of(self.scheduler.take_cache_events())

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer and chat template. InvalidRequestError with skip_tokenizer_init=True."""
        if self.config.skip_tokenizer_init:
            raise InvalidRequestError("there is no tokenizer with skip_tokenizer_init=True")
        return self.tokenizer

    def has_request(self, request_id: str) -> bool:
        """Whether this request is here, unfinished."""
        return request_id in self._outputs

    def has_unfinished_requests(self) -> bool:
        """Whether step() has something to do."""
        self._check_open()
        return len(self._outputs) > 0

    def close(self) -> None:
        """Frees the model and the KV memory. Any use after it but close() raises EngineClosedError."""
        with self._exclusive:
            if not self._closed:
                self._closed = True
                if self._recording is not None:
                    self._recording.close()
                self._executor.close()

    def _draw_seed(self) -> int:
        """The n-th drawn seed is a function of (config.seed, n), whatever was refused in between."""
        return random.Random(f"{self.config.seed}:{self._num_seeds_drawn}").getrandbits(_SEED_BITS)

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosedError("this engine is closed; make a new one")


def _place(config: EngineConfig, name: str, revision: str | None, *, without_weights: bool) -> str:
    """The file or folder of a model, fetched if need be."""
    hub = Hub(cache_dir=config.download_dir, token=config.hf_token)
    overrides = config.hf_overrides
    return str(local_model(name, hub, revision=revision, without_weights=without_weights, overrides=overrides))


def _tokenizer(config: EngineConfig, model: str) -> Tokenizer:
    """model: the file or folder it lies in."""
    if config.skip_tokenizer_init:
        return cast("Tokenizer", NoTokenizer(model))
    if config.tokenizer is None and config.tokenizer_revision is None:
        return load_tokenizer(model)
    name = config.model if config.tokenizer is None else config.tokenizer
    revision = config.tokenizer_revision
    if revision is None and name == config.model:
        revision = config.revision
    try:
        return load_tokenizer(_place(config, name, revision, without_weights=True))
    except (ModelNotFoundError, ModelFormatError) as error:
        if config.tokenizer is None:
            raise
        # Whoever looks for files calls what they were asked for `model`: the user called this one otherwise.
        raise type(error)(f"tokenizer: {str(error).removeprefix('model: ')}") from error
