"""Many short requests of every kind through an engine whose model costs nothing, and what memory holds after each part
of them, when the engine has nothing left to do."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from engine.fakes import VOCAB_SIZE, ToyTokenizer, ToyWorker, toy_logits

from fastpaged import _core
from fastpaged.config import EngineConfig
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.engine.recorder import RecordingScheduler
from fastpaged.errors import InvalidRequestError, QueueOverflowError
from fastpaged.outputs import RequestOutput
from fastpaged.sampling_params import SamplingParams

MAX_MODEL_LEN = 64
BLOCK_SIZE = 4
NUM_BLOCKS = 28
NUM_HOST_BLOCKS = 16
MOST_AT_A_TIME = 24
TICK = 1_000_000  # nanoseconds between two looks at the clock


class TableWorker(ToyWorker):
    """Its logits stand in a table: nothing is computed."""

    def __init__(self) -> None:
        super().__init__(NUM_BLOCKS, NUM_HOST_BLOCKS, MAX_MODEL_LEN)
        self._logits = np.stack(
            [[toy_logits(token, position) for position in range(MAX_MODEL_LEN)] for token in range(VOCAB_SIZE)]
        )

    def execute(self, batch: _core.Batch) -> _core.SamplerOutput:
        rows = batch.sample_rows
        logits: npt.NDArray[np.float32] = self._logits[batch.token_ids[rows], batch.positions[rows]]
        return self._sampler.sample(logits, batch)


@dataclass(frozen=True)
class Memory:
    """What a process holds when its engine holds no request."""

    num_requests: int  # so far
    objects: int  # that Python's collector knows
    python_blocks: int  # of Python's allocator
    heap_bytes: int  # of malloc, in use; 0 where the C library does not say
    resident_bytes: int  # 0 where the system does not say

    @classmethod
    def now(cls, num_requests: int) -> Memory:
        gc.collect()
        return cls(num_requests, len(gc.get_objects()), sys.getallocatedblocks(), _heap_bytes(), _resident_bytes())


class _MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    )]  # fmt: skip


def _heap_bytes() -> int:
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return 0
    mallinfo.restype = _MallInfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)


def _resident_bytes() -> int:
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if status.exists() else 0


@dataclass(frozen=True)
class _Request:
    prompt: list[int]
    params: SamplingParams
    terms: dict[str, Any]
    salt: str | None
    aborted_after: int | None  # steps


def soak_engine(record: str | None = None) -> LLMEngine:
    """Small enough that requests wait, are preempted by both means, and evict what others have cached. record: a file
    that is written."""
    config = EngineConfig(
        model="table",
        block_size=BLOCK_SIZE,
        scheduling_policy="priority",
        ageing_steps=20,
        max_num_queued_tokens=300,
        max_num_seqs=12,
        max_num_batched_tokens=48,
        watermark=0.0,
        record=record,
    )
    engine = LLMEngine.with_parts(config, TableWorker(), ToyTokenizer())  # type: ignore[arg-type]
    ticks = iter(range(engine.now_ns(), sys.maxsize, TICK))  # from where a recording has begun
    engine.clock.source = lambda: next(ticks)
    return engine


def _left_in(scheduler: RecordingScheduler) -> dict[str, int]:
    """Of what a recorder holds of requests, and of texts that nobody can find any more. It forgets these now and then:
    here at once, so that what is left does not go up and down."""
    scheduler._forget()
    scheduler._paths.check_invariants()
    num_slots = (scheduler.num_blocks + scheduler.num_host_blocks) * BLOCK_SIZE
    return {
        "requests in the recorder": len(scheduler._positions),
        "pins in the recorder": len(scheduler._pinned),
        "tokens in the recorder that are not cached": max(0, scheduler._paths.num_tokens - num_slots),
    }


class Soak:
    """Requests drawn from a seed, the next ones as others end; everything that is said of them is counted, and dropped.

    kinds: how many requests were of each kind, or came to each end.
    """

    def __init__(self, engine: LLMEngine, seed: int) -> None:
        self.engine = engine
        self.kinds: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._beginnings = [[self._token() for _ in range(14)] for _ in range(40)]
        self._num_added = 0
        self._to_abort: dict[str, int] = {}  # request id -> the step before which it goes
        self._num_steps = 0
        self.on_output: Callable[[RequestOutput], None] = lambda output: None

    def run(self, num_requests: int, num_parts: int) -> Iterator[Memory]:
        """After each of the parts, with nothing left in the engine."""
        for part in range(num_parts):
            self._run_to(num_requests * (part + 1) // num_parts)
            self.check_nothing_is_left()
            yield Memory.now(self._num_added)

    def check_nothing_is_left(self) -> None:
        """AssertionError naming what holds something of a request that is over."""
        engine, scheduler = self.engine, self.engine.scheduler
        left = {
            "requests in the output processor": len(engine._outputs),
            "requests that wait": scheduler.num_waiting,
            "requests that run": scheduler.num_running,
            "swapped requests": scheduler.num_swapped,
            "held blocks": scheduler.num_blocks - scheduler.num_free_blocks,
            "host blocks": scheduler.num_host_blocks - scheduler.num_free_host_blocks,
            "entries of block tables": scheduler.num_logical_blocks,
            "requests to abort": len(self._to_abort),
            **(_left_in(scheduler) if isinstance(scheduler, RecordingScheduler) else {}),
        }
        scheduler.check_invariants()
        if any(left.values()):
            raise AssertionError({what: count for what, count in left.items() if count})

    def _run_to(self, num_requests: int) -> None:
        engine = self.engine
        while self._num_added < num_requests or engine.has_unfinished_requests():
            while self._num_added < num_requests and len(engine._outputs) < MOST_AT_A_TIME:
                self._add(self._draw())
            for request_id in [name for name, step in self._to_abort.items() if step <= self._num_steps]:
                del self._to_abort[request_id]
                self._note(engine.abort_request(request_id))
            for output in engine.step():
                self._note(output)
            self._num_steps += 1
            if engine.has_unfinished_requests() != engine.scheduler.has_unfinished():
                raise AssertionError("a request is over for the scheduler or for the engine, and not for the other")

    def _add(self, request: _Request) -> None:
        request_id = str(self._num_added)
        self._num_added += 1
        prompt: Any = request.prompt
        if request.salt is not None:
            prompt = {"prompt_token_ids": prompt, "cache_salt": request.salt}
        try:
            self.engine.add_request(request_id, prompt, request.params, **request.terms)
        except InvalidRequestError:
            self.kinds["refused"] += 1
            return
        except QueueOverflowError:
            self.kinds["kept out of a full queue"] += 1
            return
        if request.aborted_after is not None:
            self._to_abort[request_id] = self._num_steps + request.aborted_after

    def _note(self, output: RequestOutput | None) -> None:
        if output is None or not output.finished:
            return
        self.on_output(output)
        self._to_abort.pop(output.request_id, None)
        self.kinds["preempted"] += output.metrics.num_preemptions > 0
        self.kinds["found cached tokens"] += output.num_cached_tokens > 0
        for completion in output.outputs:
            reason = completion.finish_reason
            self.kinds[
                str(completion.stop_reason) if reason == "abort" and completion.stop_reason else str(reason)
            ] += 1

    def _draw(self) -> _Request:
        rng = self._random
        begins = rng.choice(self._beginnings)[: rng.randint(0, 14)] if rng.random() < 0.6 else []
        prompt = begins + [self._token() for _ in range(rng.randint(1, 6))]
        params = SamplingParams(max_tokens=rng.randint(1, 12), temperature=0.0)
        kind = rng.choices(("plain", "drawn", "samples", "beams", "too long"), (8, 6, 3, 2, 1))[0]
        if kind == "drawn":
            params = replace(params, temperature=1.5, seed=rng.choice((None, 7)), logprobs=rng.choice((None, 0, 2)))
        elif kind == "samples":
            params = replace(params, temperature=1.5, n=3, best_of=rng.choice((None, 4)))
        elif kind == "beams":
            params = replace(params, use_beam_search=True, n=2, stop=rng.choice((None, ["a", "bc"])))
        elif kind == "too long":
            prompt = [self._token() for _ in range(MAX_MODEL_LEN + 1)]
        if kind != "beams" and rng.random() < 0.2:
            params = replace(params, stop=[chr(self._token())], prompt_logprobs=rng.choice((None, 1)))
        self.kinds[kind] += 1
        aborted_after = rng.randint(0, 6) if rng.random() < 0.1 else None
        terms = {
            "priority": rng.choice((-1, 0, 0, 0, 2)),
            "deadline": rng.choice((None, None, 0.02)) if rng.random() < 0.3 else None,
            "queue_timeout": rng.choice((None, 0.01)) if rng.random() < 0.3 else None,
        }
        return _Request(prompt, params, terms, rng.choice((None, None, None, "a tenant")), aborted_after)

    def _token(self) -> int:
        return self._random.randrange(3, VOCAB_SIZE)  # with the end of sequence, and the one whose logits are NaN
