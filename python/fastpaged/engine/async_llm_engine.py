"""AsyncLLMEngine: an engine that any number of coroutines share."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from fastpaged import param_checks as check
from fastpaged._core import __version__
from fastpaged.absent_names import OF_ASYNC_LLM_ENGINE, SaysWhyAbsent
from fastpaged.engine.admission import check_types
from fastpaged.engine.engine_thread import EngineThread
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.engine.mailbox import Mailbox, Postman
from fastpaged.engine.pinned_prefixes import COMPUTING, check_computed
from fastpaged.errors import EngineClosedError, EngineDeadError, InvalidRequestError
from fastpaged.tokenizer.tokenizer import LONG_TEXT

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from fastpaged.config import EngineArgs, EngineConfig
    from fastpaged.engine.admission import Prompt
    from fastpaged.engine.engine_stats import EngineStats
    from fastpaged.engine.heartbeat import Progress
    from fastpaged.engine.pinned_prefixes import PinnedPrefix, Prefix
    from fastpaged.kv_events import KVEvents
    from fastpaged.kv_snapshot import KVSnapshot, KVSplit
    from fastpaged.outputs import RequestOutput
    from fastpaged.progress import ProgressCallback
    from fastpaged.sampling_params import SamplingParams
    from fastpaged.tokenizer import Tokenizer

T = TypeVar("T")


class AsyncLLMEngine(SaysWhyAbsent):
    """A model on a thread of its own; answers come as async generators, on whichever event loops ask.

    The engine works while coroutines do other things: their event loop is woken once a step, and a reader that comes
    late finds what it missed as one output. Loading the model takes the constructor's thread.

    Raises what LLMEngine raises. Shut it down with shutdown(); one that is dropped or still there at exit is shut down
    without being told. In a forked child it is dead: a process makes its own.
    """

    _ABSENT = OF_ASYNC_LLM_ENGINE

    def __init__(self, config: EngineConfig, *, progress: ProgressCallback | None = None) -> None:
        self._start(LLMEngine(config, progress=progress))

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, *, progress: ProgressCallback | None = None) -> AsyncLLMEngine:
        """With the arguments that these hold, as LLM(...) takes them."""
        return cls(engine_args.engine_config(), progress=progress)

    @classmethod
    def with_engine(cls, engine: LLMEngine) -> AsyncLLMEngine:
        """Around an engine that stands already; it belongs to the new thread from then on."""
        made = cls.__new__(cls)
        made._start(engine)
        return made

    def _start(self, engine: LLMEngine) -> None:
        self._thread = EngineThread(engine)
        self._postmen: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Postman] = weakref.WeakKeyDictionary()
        self._preparing: dict[str, Mailbox] = {}  # by request id, of those that the engine does not know yet
        # The thread knows nothing of this object, and so does not keep it alive.
        self._finalizer = weakref.finalize(self, self._thread.shut_down, 0.0)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: None = None,
        trace_headers: None = None,
        priority: int = 0,
        data_parallel_rank: None = None,
        deadline: float | None = None,
        queue_timeout: float | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields the request as it grows, the last time finished: what sampling_params.output_kind says, with all that
        came since the last yield in one output; with best_of > n or a beam search once, at the end.

        prompt: a string, token ids, {"prompt": str} or {"prompt_token_ids": ids}, and maybe a "cache_salt" in it.
        sampling_params: None is get_default_sampling_params(). request_id: new among the unfinished ones; None makes up
        one.
        priority: with scheduling_policy="priority": smaller is served first.
        deadline: seconds from now, after which it ends with what it has. queue_timeout: seconds after which it ends if
        it has not begun; None: the engine's; inf: never. It then has finish_reason "abort" and stop_reason "deadline"
        or "queue_timeout".
        Closing or cancelling the generator aborts the request before the engine's next step.

        Raises InvalidRequestError for a bad request, QueueOverflowError where too much waits already (see
        check_admission()), StepFailedError or EngineDeadError where the engine fails, and
        EngineClosedError after shutdown().
        """
        _refuse_unsupported(
            lora_request=lora_request,
            trace_headers=trace_headers,
            data_parallel_rank=data_parallel_rank,
        )
        self._thread.check_running()
        arrival = self._thread.engine.now_ns()
        params = self.get_default_sampling_params() if sampling_params is None else sampling_params
        new_id = uuid.uuid4().hex if request_id is None else request_id
        check_types(new_id, params)
        mailbox = Mailbox(self._postman(), params.output_kind)
        if self._preparing.setdefault(new_id, mailbox) is not mailbox:
            raise InvalidRequestError(f"request_id must be new, got {new_id!r}, which is still unfinished")
        try:
            request = await self._prepare(
                prompt,
                lambda engine: engine.prepare(
                    new_id, prompt, params, priority=priority, deadline=deadline, queue_timeout=queue_timeout
                ),
            )
            self._thread.add(request, mailbox, arrival)
        finally:
            del self._preparing[new_id]
        ended = False
        try:
            while not ended:
                try:
                    output = await mailbox.take()
                except Exception:  # the engine ended it
                    ended = True
                    raise
                ended = output.finished
                yield output
        finally:
            if not ended:
                self._thread.abort(new_id, mailbox)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Ends requests before the next step; their generators yield a last output with finish_reason "abort". An id
        that is not (or no longer) here is no error; one whose prompt is still being tokenised is here."""
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        for one in ids:
            if not isinstance(one, str):
                raise InvalidRequestError(f"request_id must be a string or strings, got {one!r:.80}")
        for one in ids:
            preparing = self._preparing.get(one)
            if preparing is not None:  # the engine learns of both, the request and that nobody wants it, at once
                preparing.is_unwanted = True
            self._thread.abort(one)

    async def pin_prefix(
        self, prefix: Prefix, ttl: float | None = None, *, cache_salt: str | None = None
    ) -> PinnedPrefix:
        """As LLM.pin_prefix(): computed beside other requests. Cancelling it unpins."""
        self._thread.check_running()
        pin = await self._prepare(prefix, lambda engine: engine.pins.prepare(prefix, ttl, cache_salt))
        try:
            if not await self._ask(lambda engine: engine.pins.hold(pin)):
                async for output in self.generate(pin.prompt, COMPUTING):
                    check_computed(output)
            return await self._ask(lambda engine: engine.pins.start_ttl(pin))
        except BaseException:
            with contextlib.suppress(EngineClosedError, EngineDeadError):  # then its pins have gone with it
                self._thread.ask(lambda engine: engine.pins.release(pin.id))
            raise

    async def pinned_prefixes(self) -> list[PinnedPrefix]:
        """As LLM.pinned_prefixes()."""
        return await self._ask(lambda engine: engine.pins.all())

    async def unpin_prefix(self, prefix_id: int) -> bool:
        """As LLM.unpin_prefix()."""
        return await self._ask(lambda engine: engine.pins.release(prefix_id))

    async def reset_prefix_cache(self) -> bool:
        """As LLM.reset_prefix_cache()."""
        return await self._ask(lambda engine: engine.reset_prefix_cache())

    async def kv_snapshot(self) -> KVSnapshot:
        """As LLM.kv_snapshot(), between two steps."""
        return await self._ask(lambda engine: engine.kv_snapshot())

    async def kv_splits(self) -> dict[str, KVSplit]:
        """What the slots of each tier ("device", "host") are for: kv_snapshot()'s splits alone, between two steps."""
        return await self._ask(lambda engine: engine.kv_splits())

    async def kv_events(self) -> KVEvents:
        """As LLM.kv_events()."""
        return await self._ask(lambda engine: engine.kv_events())

    def check_admission(self, num_tokens: int = 1) -> None:
        """Raises QueueOverflowError if a request with a prompt of so many tokens would be refused now. Waits for
        nothing; a moment later it may be otherwise."""
        check.integer("num_tokens", num_tokens, 1, check.MAX_TOKEN_ID, "an integer >= 1")
        self._thread.check_running()
        overflow = self._thread.engine.queue_overflow(num_tokens)
        if overflow is not None:
            raise overflow

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer and chat template. InvalidRequestError with skip_tokenizer_init=True."""
        return self._thread.engine.get_tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        """What requests get that give none, as LLM.get_default_sampling_params(). Waits for nothing."""
        return self._thread.engine.default_sampling_params

    async def check_health(self) -> None:
        """Raises EngineDeadError if the engine is dead."""
        error = self._thread.error
        if error is not None:
            raise error

    @property
    def arithmetic(self) -> str:
        """What the bits of answers depend on beside the requests."""
        engine = self._thread.engine
        worker, config = engine.worker, engine.config
        return f"{__version__} {config.model} {worker.dtype} {config.kv_cache_dtype} {worker.device.isa}"

    @property
    def cache_config(self) -> dict[str, str]:
        """Of the KV cache: sizes and what is decided by the configuration."""
        engine = self._thread.engine
        config = engine.config
        return {
            "block_size": str(config.block_size),
            "num_gpu_blocks": str(engine.worker.num_blocks),  # as everybody calls the device's
            "num_cpu_blocks": str(engine.worker.num_host_blocks),
            "cache_dtype": config.kv_cache_dtype,
            "enable_prefix_caching": str(config.enable_prefix_caching),
        }

    @property
    def max_num_seqs(self) -> int:
        """Sequences in one step, at most."""
        return self._thread.engine.config.max_num_seqs

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""
        return self._thread.engine.worker.model_config.vocab_size

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest context."""
        return self._thread.engine.worker.max_model_len

    @property
    def stats(self) -> EngineStats | None:
        """Of the engine, as it counts on: see there. None with disable_log_stats."""
        return self._thread.engine.stats

    def progress(self) -> Progress:
        """Whether running work advances. Waits for nothing: it answers while a step hangs, too."""
        return self._thread.progress

    @property
    def is_running(self) -> bool:
        """Whether it takes requests."""
        return self._thread.is_running

    @property
    def is_stopped(self) -> bool:
        """Whether it was shut down, or died."""
        return not self._thread.is_running

    @property
    def errored(self) -> bool:
        """Whether it died."""
        return self._thread.error is not None

    @property
    def dead_error(self) -> EngineDeadError | None:
        """Why it died; None while it lives."""
        return self._thread.error

    def shutdown(self, timeout: float = 0.0) -> None:
        """Takes no more requests; those in flight have `timeout` seconds to finish, and end with "abort" then. Frees
        the model and returns when that is done. Idempotent. Blocks: on an event loop, await aclose()."""
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 <= timeout <= 1e9:
            raise InvalidRequestError(f"timeout must be a number of seconds from 0 to 1e9, got {timeout!r}")
        self._finalizer.detach()
        self._thread.shut_down(timeout)

    async def aclose(self, timeout: float = 0.0) -> None:
        """shutdown() that leaves the event loop free: readers get their last outputs meanwhile."""
        await asyncio.to_thread(self.shutdown, timeout)

    async def _ask(self, question: Callable[[LLMEngine], T]) -> T:
        return await asyncio.wrap_future(self._thread.ask(question))

    async def _prepare(self, prompt: object, prepare: Callable[[LLMEngine], T]) -> T:
        """Long texts are tokenised on another thread: the event loop has others to serve."""
        text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
        is_long = len(text) > LONG_TEXT if isinstance(text, str) else _is_conversation(text)
        try:
            if is_long:
                return await asyncio.to_thread(prepare, self._thread.engine)
            return prepare(self._thread.engine)
        except EngineClosedError:
            self._thread.check_running()  # which knows whether it was closed or died
            raise

    def _postman(self) -> Postman:
        loop = asyncio.get_running_loop()
        postman = self._postmen.get(loop)
        if postman is None:
            postman = self._postmen.setdefault(loop, Postman(loop))
        return postman


def _is_conversation(prompt: object) -> bool:
    return isinstance(prompt, (list, tuple)) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def _refuse_unsupported(**given: object) -> None:
    for name, value in given.items():
        if value not in (None, 0):
            raise InvalidRequestError(f"{name} is not supported by this engine yet: leave it out, got {value!r}")
