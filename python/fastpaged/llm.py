"""LLM: a model and its engine for offline use. Prompts in, answers out, in input order."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from fastpaged.absent_names import OF_LLM, SaysWhyAbsent
from fastpaged.beam_search_params import BeamSearchParams
from fastpaged.config import EngineArgs
from fastpaged.engine.admission import checked_salt
from fastpaged.engine.call_arguments import (
    as_conversations,
    as_prompt_list,
    at_index,
    params_per_prompt,
    terms_per_prompt,
)
from fastpaged.engine.chat_prompt import chat_prompt
from fastpaged.engine.deferred_signals import DeferredSignals
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.engine.pinned_prefixes import COMPUTING, check_computed
from fastpaged.errors import EngineClosedError, InvalidRequestError, RequestLostError
from fastpaged.outputs import BeamSearchOutput
from fastpaged.param_checks import refusal
from fastpaged.progress import ProgressBar, ProgressCallback

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from fastpaged.engine.admission import EngineRequest, Prompt
    from fastpaged.engine.pinned_prefixes import PinnedPrefix, Prefix
    from fastpaged.kv_events import KVEvents
    from fastpaged.kv_snapshot import KVSnapshot
    from fastpaged.outputs import RequestOutput
    from fastpaged.sampling_params import SamplingParams
    from fastpaged.tokenizer import Tokenizer
    from fastpaged.tokenizer.chat_messages import ChatMessage


class LLM(SaysWhyAbsent):
    """A model that answers. Not thread-safe.

    model: a .gguf file; a folder with config.json and safetensors (one file, or an index and its files), or with one
        .gguf file; or "org/name" or "org/name/FILE.gguf", looked up in FASTPAGED_MODELS, then fetched from the hub.
    progress: called with (phase, done, total) while the model loads.
    engine_args: fields of EngineConfig, and other names of them that people know (see EngineArgs). One that there is
        nothing for is an InvalidRequestError with the reason; an unknown one a TypeError naming what it may have meant.

    Close it with close() or `with LLM(...) as llm:`; afterwards every use raises EngineClosedError.
    """

    _ABSENT = OF_LLM

    def __init__(self, model: str, *, progress: ProgressCallback | None = None, **engine_args: object) -> None:
        config = EngineArgs(model, **engine_args).engine_config()
        self._engine: LLMEngine | None = LLMEngine(config, progress=progress)
        self._inboxes: dict[str, deque[RequestOutput]] = {}  # request id -> where its caller looks for outputs
        self._next_request_id = 0
        self._enqueued: list[EngineRequest] = []

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        """LLM(...) with the arguments that these hold."""
        return cls(engine_args.model, **engine_args.given)  # type: ignore[arg-type]  # checked by EngineArgs

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
        lora_request: None = None,
        priority: int | Sequence[int] | None = None,
        deadline: float | Sequence[float | None] | None = None,
        queue_timeout: float | Sequence[float | None] | None = None,
    ) -> list[RequestOutput]:
        """Answers all prompts, batched together. Results are in input order.

        prompts: one prompt or a list of them; a prompt is a string, token ids, {"prompt": str} or
            {"prompt_token_ids": ids}; a "cache_salt" in it, a string, has it share prefixes with prompts of the same
            one alone.
        sampling_params: one for all, or one per prompt; None is get_default_sampling_params().
        use_tqdm: show on stderr how many prompts are done; None: where stderr is a terminal.
        lora_request: None, for there are no adapters.
        priority: with scheduling_policy="priority": smaller is served first. deadline: seconds after which a request
            ends with what it has. queue_timeout: seconds after which it ends if it has not begun; None: the engine's;
            inf: never. Each is one for all prompts, or a list with one per prompt. A request whose time is up has
            finish_reason "abort" and stop_reason "deadline" or "queue_timeout".

        With a limit on the queue (max_num_queued_requests or _tokens), prompts that find no room in it wait in this
        call, and their time begins when they are queued: a long list is no QueueOverflowError.

        Every result is whole, whatever output_kind says. A bad prompt raises InvalidRequestError naming its index, and
        nothing runs. An exception on the way (also KeyboardInterrupt) aborts these requests; the LLM stays usable.
        """
        _refuse_adapter(lora_request)
        bar = _bar(use_tqdm)
        terms = (priority, deadline, queue_timeout)
        requests = self._prepare_all(as_prompt_list(prompts), sampling_params, "prompts", terms)
        return self._answers(requests, bar)

    def chat(
        self,
        messages: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        cache_salt: str | None = None,
        use_tqdm: bool | None = None,
        lora_request: None = None,
        priority: int | Sequence[int] | None = None,
        deadline: float | Sequence[float | None] | None = None,
        queue_timeout: float | Sequence[float | None] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation, or a list of them, put through the model's chat template; else as generate().

        messages: {"role": str, "content": str or a list of {"type": "text", "text": str}}.
        chat_template: a Jinja source in place of the model's own.
        add_generation_prompt: begin an answer after the last message. continue_final_message: go on with that instead
            (then add_generation_prompt must be False); the output holds only what is new.
        tools: descriptions of tools, for templates that know them. chat_template_kwargs: more names for the template.
        cache_salt: share prefixes with requests of the same one alone.
        """
        _refuse_adapter(lora_request)
        bar = _bar(use_tqdm)
        tokenizer = self.get_tokenizer()
        arguments = {
            "chat_template": chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": tools,
            "chat_template_kwargs": chat_template_kwargs,
        }
        prompts: list[Prompt] = []
        salt = {} if cache_salt is None else {"cache_salt": checked_salt("cache_salt", cache_salt)}
        conversations = as_conversations(messages)
        for index, conversation in enumerate(conversations):
            try:
                prompts.append({**chat_prompt(tokenizer, conversation, **arguments), **salt})
            except InvalidRequestError as error:
                raise at_index(error, "conversations", index, len(conversations)) from error
        terms = (priority, deadline, queue_timeout)
        requests = self._prepare_all(prompts, sampling_params, "conversations", terms)
        return self._answers(requests, bar)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        use_tqdm: bool | None = None,
        lora_request: None = None,
        concurrency_limit: None = None,
        priority: int | Sequence[int] | None = None,
        deadline: float | Sequence[float | None] | None = None,
        queue_timeout: float | Sequence[float | None] | None = None,
    ) -> list[BeamSearchOutput]:
        """The likeliest answers to each prompt, best first; else as generate().

        concurrency_limit: None, for the scheduler lets in as many searches as there is memory for.
        """
        _refuse_adapter(lora_request)
        if concurrency_limit is not None:
            raise refusal("concurrency_limit", concurrency_limit, "None (memory is shared out by the scheduler)")
        if not isinstance(params, BeamSearchParams):
            raise InvalidRequestError(f"params must be a BeamSearchParams, got {type(params).__name__}")
        bar = _bar(use_tqdm)
        terms = (priority, deadline, queue_timeout)
        requests = self._prepare_all(as_prompt_list(prompts), params.sampling_params(), "prompts", terms)
        return [
            BeamSearchOutput.of(output, self._prompt_text(output, params)) for output in self._answers(requests, bar)
        ]

    def enqueue(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora_request: None = None,
        priority: int | Sequence[int] | None = None,
        deadline: float | Sequence[float | None] | None = None,
        queue_timeout: float | Sequence[float | None] | None = None,
    ) -> list[str]:
        """Checks and keeps what generate() would answer, for wait_for_completion(), where its time begins; returns the
        ids of the requests."""
        _refuse_adapter(lora_request)
        terms = (priority, deadline, queue_timeout)
        requests = self._prepare_all(as_prompt_list(prompts), sampling_params, "prompts", terms)
        self._enqueued += requests
        return [request.request_id for request in requests]

    def wait_for_completion(self, *, use_tqdm: bool | None = None) -> list[RequestOutput]:
        """Answers all that enqueue() took since the last time, in its order; else as generate()."""
        self._open_engine()
        bar = _bar(use_tqdm)  # a refusal loses nothing
        requests, self._enqueued = self._enqueued, []
        return self._answers(requests, bar)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int | None = None,
        deadline: float | None = None,
        queue_timeout: float | None = None,
    ) -> Iterator[RequestOutput]:
        """Yields after each step of the request, the last time finished: text and token_ids so far, or with output_kind
        DELTA what is new (maybe a token without a text); FINAL_ONLY yields once, and so do best_of and a beam search.

        A bad prompt raises at the call, not at the first next(), where its time begins. Closing the iterator early
        aborts the request. priority, deadline, queue_timeout: as for generate().
        """
        terms = (priority, deadline, queue_timeout)
        return self._run(self._prepare_all([prompt], sampling_params, "prompts", terms), final_only=False)

    def pin_prefix(self, prefix: Prefix, ttl: float | None = None, *, cache_salt: str | None = None) -> PinnedPrefix:
        """Keeps the KV blocks of what prompts begin with, computing it if need be, until it is unpinned.

        prefix: a string or token ids, which prompts begin with as tokens; or messages that conversations begin with, by
            the model's chat template. Its full KV blocks are pinned.
        ttl: seconds until it is unpinned by itself, from now; None: never.
        cache_salt: of the prompts that begin with it, if they have one.

        InvalidRequestError if there is nothing to pin, or no room left in pinned_prefix_budget. Pins take room as
        running requests do, but never keep one that fits the pool from running: when it runs alone and needs their
        blocks, they give them up, and PinnedPrefix.resident is False.
        """
        pins = self._open_engine().pins
        pin = pins.prepare(prefix, ttl, cache_salt)
        try:
            if not pins.hold(pin):
                check_computed(self.generate(pin.prompt, COMPUTING, use_tqdm=False)[0])
            return pins.start_ttl(pin)
        except BaseException:
            if self._engine is not None:
                pins.release(pin.id)
            raise

    def pinned_prefixes(self) -> list[PinnedPrefix]:
        """Those whose time is not up, the oldest first."""
        return self._open_engine().pins.all()

    def unpin_prefix(self, prefix_id: int) -> bool:
        """Its blocks are in the prefix cache as others are, until somebody needs the room. False if there is no such
        pin (any more)."""
        return self._open_engine().pins.release(prefix_id)

    def reset_prefix_cache(self) -> bool:
        """Forgets every cached prefix: True. Pinned ones stay pinned, and are kept again once they are computed."""
        return self._open_engine().reset_prefix_cache()

    def kv_snapshot(self) -> KVSnapshot:
        """Who holds what of the KV memory now: print() it, or see its fields and to_dict()."""
        return self._open_engine().kv_snapshot()

    def kv_events(self) -> KVEvents:
        """What became of the prefix cache's contents since the last call, at most the last MAX_KV_EVENTS of it.
        InvalidRequestError without kv_events=True."""
        return self._open_engine().kv_events()

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer and chat template. InvalidRequestError with skip_tokenizer_init=True."""
        return self._open_engine().get_tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        """What requests get that give none: the defaults, with what the model's generation_config.json and
        override_generation_config say of sampling (see generation_config)."""
        return self._open_engine().default_sampling_params

    @property
    def engine(self) -> LLMEngine:
        """The engine below. Requests added to it directly are stepped along, and their outputs are not kept.

        Whoever steps it or aborts requests there takes what stream() and generate() in progress are waiting for: these
        then raise RequestLostError.
        """
        return self._open_engine()

    def close(self) -> None:
        """Frees the model and the KV memory. Calling it again does nothing."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open_engine(self) -> LLMEngine:
        if self._engine is None:
            raise EngineClosedError("this LLM is closed; make a new one")
        return self._engine

    def _prompt_text(self, output: RequestOutput, params: BeamSearchParams) -> str:
        if not params.detokenize:
            return ""
        if output.prompt is not None:
            return output.prompt
        tokenizer = self.get_tokenizer()
        return tokenizer.decode(output.prompt_token_ids, skip_special_tokens=params.skip_special_tokens)

    def _prepare_all(
        self,
        prompts: Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        called: str,
        terms: tuple[Any, Any, Any],
    ) -> list[EngineRequest]:
        """called: what the caller calls the list of prompts. terms: as terms_per_prompt() takes them."""
        engine = self._open_engine()
        params = engine.default_sampling_params if sampling_params is None else sampling_params
        own_params, own_terms = params_per_prompt(params, len(prompts)), terms_per_prompt(len(prompts), *terms)
        requests = []
        for index, prompt in enumerate(prompts):
            while engine.has_request(str(self._next_request_id)):  # somebody's, added to the engine directly
                self._next_request_id += 1
            try:
                request_id = str(self._next_request_id)
                requests.append(engine.prepare(request_id, prompt, own_params[index], **own_terms[index]))
            except InvalidRequestError as error:
                raise at_index(error, called, index, len(prompts)) from error
            self._next_request_id += 1
        return requests

    def _answers(self, requests: list[EngineRequest], bar: ProgressBar | None) -> list[RequestOutput]:
        finished: dict[str, RequestOutput] = {}
        try:
            for output in self._run(requests, final_only=True):
                finished[output.request_id] = output
                if bar is not None:
                    bar("processed prompts", len(finished), len(requests))
        finally:
            if bar is not None:
                bar.clear()
        return [finished[request.request_id] for request in requests]

    def _run(self, requests: list[EngineRequest], *, final_only: bool) -> Iterator[RequestOutput]:
        """Queues the requests, then steps the engine, and so everybody's requests, as the iterator is pulled."""
        inbox: deque[RequestOutput] = deque()
        backlog = deque(requests)
        unfinished: set[str] = set()
        try:
            while backlog or unfinished:
                while not inbox:
                    self._queue(backlog, unfinished, inbox, final_only=final_only)
                    self._step()
                    if not inbox and unfinished:
                        self._check_not_lost(unfinished)
                output = inbox.popleft()
                if output.finished:
                    unfinished.discard(output.request_id)
                    del self._inboxes[output.request_id]
                yield output
        finally:
            with DeferredSignals():
                for request_id in unfinished:
                    self._inboxes.pop(request_id, None)
                    if self._engine is not None:
                        self._engine.abort_request(request_id)

    def _queue(
        self, backlog: deque[EngineRequest], unfinished: set[str], inbox: deque[RequestOutput], *, final_only: bool
    ) -> None:
        """As many as there is room for in the queue. What is in it already, whoever's, makes room as it is stepped."""
        while backlog and self._open_engine().queue_overflow(len(backlog[0].prompt_token_ids)) is None:
            with DeferredSignals():
                request = backlog[0]
                self._open_engine().enqueue(request, final_only=final_only)
                self._inboxes[request.request_id] = inbox
                unfinished.add(request.request_id)
                backlog.popleft()

    def _step(self) -> None:
        with DeferredSignals():  # an output made is an output delivered, whoever's step it was
            for output in self._open_engine().step():
                inbox = self._inboxes.get(output.request_id)
                if inbox is not None:
                    inbox.append(output)

    def _check_not_lost(self, unfinished: set[str]) -> None:
        engine = self._open_engine()
        if not any(engine.has_request(request_id) for request_id in unfinished):
            raise RequestLostError(
                f"request {min(unfinished)!r} was ended, or its last output taken, through LLM.engine outside this call"
            )


def _bar(use_tqdm: bool | None) -> ProgressBar | None:
    if use_tqdm is not None and not isinstance(use_tqdm, bool):
        raise refusal("use_tqdm", use_tqdm, "None, True or False (the progress line is the LLM's own)")
    if sys.stderr is None:  # as where a process was started without one
        return None
    shown = sys.stderr.isatty() if use_tqdm is None else use_tqdm
    return ProgressBar(sys.stderr) if shown else None


def _refuse_adapter(lora_request: object) -> None:
    if lora_request is not None:
        raise InvalidRequestError(f"lora_request must be None, for there are no adapters, got {lora_request!r:.80}")
