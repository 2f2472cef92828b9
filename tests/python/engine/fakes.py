"""A toy model and a toy tokenizer: small enough to be obvious, with the real scheduler and sampler between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from fastpaged import _core
from fastpaged.config import EngineConfig
from fastpaged.engine.llm_engine import LLMEngine

VOCAB_SIZE = 128
EOS = 3
POISON = 4  # the toy model's logits after this token are NaN

_TABLE = np.random.default_rng(5).standard_normal((VOCAB_SIZE, VOCAB_SIZE), dtype=np.float32) * 3


def toy_logits(token_id: int, position: int) -> npt.NDArray[np.float32]:
    """[vocab] logits after `token_id` at `position`."""
    if token_id == POISON:
        return np.full(VOCAB_SIZE, np.nan, dtype=np.float32)
    return np.roll(_TABLE[token_id], position)


def toy_greedy(prompt: Sequence[int], max_tokens: int, stops: Iterable[int] = (EOS,)) -> list[int]:
    """What a greedy request must answer: the plain loop."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        tokens.append(int(np.argmax(toy_logits(tokens[-1], len(tokens) - 1))))
        if tokens[-1] in stops:
            break
    return tokens[len(prompt) :]


class ToyTokenizer:
    """A token is a character: id 65 is "A". Special tokens have no text."""

    def __init__(self) -> None:
        self.eos_token_ids = frozenset({EOS})
        self.bos_token_id = None
        self.vocab_size = VOCAB_SIZE
        self.fails_on: int | None = None  # a token id whose text cannot be made

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in text]

    def fewest_tokens(self, text: str) -> int:
        return 0

    def token_text(self, token_id: int) -> str:
        return chr(token_id)

    def text_stream(self, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> ToyStream:
        return ToyStream(self, skip_special_tokens)


class ToyStream:
    """Holds each character back until the next one, as if it could still change."""

    def __init__(self, tokenizer: ToyTokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._held = ""

    def push(self, token_id: int) -> str:
        if token_id == self._tokenizer.fails_on:
            raise ZeroDivisionError("no text")
        shown, self._held = self._held, "" if self._skip and token_id == EOS else chr(token_id)
        return shown

    def finish(self) -> str:
        return self._held

    def copy(self) -> ToyStream:
        other = ToyStream(self._tokenizer, self._skip)
        other._held = self._held
        return other


class ToyWorker:
    """Stands where Worker stands; its logits come from toy_logits, so that it has no blocks to copy."""

    def __init__(self, num_blocks: int, num_host_blocks: int, max_model_len: int) -> None:
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.max_model_len = max_model_len
        self.block_bytes = 1000  # as if there were blocks
        self.model_config = SimpleNamespace(vocab_size=VOCAB_SIZE)
        self.num_closed = self.num_ops_run = 0
        self.before_step: Callable[[], None] | None = None
        self.device = _core.CpuDevice("scalar", 1)
        self._sampler = _core.Sampler(self.device)
        self._started: _core.Batch | None = None

    def copy(self, plan: _core.SchedulerOutput) -> int:
        return 0

    def seconds_per_block(self) -> tuple[float, float]:
        return 0.0, 0.0

    def execute(self, batch: _core.Batch) -> _core.SamplerOutput:
        if self.before_step is not None:
            self.before_step()
        rows = [toy_logits(int(batch.token_ids[row]), int(batch.positions[row])) for row in batch.sample_rows]
        logits = np.stack(rows) if rows else np.empty((0, VOCAB_SIZE), dtype=np.float32)
        return self._sampler.sample(logits, batch)

    def start(self, batch: _core.Batch) -> None:
        """Nothing is computed before finish(): as late as it could be, so that whoever changed something is seen."""
        assert self._started is None
        self._started = batch

    def finish(self) -> _core.SamplerOutput:
        batch, self._started = self._started, None
        assert batch is not None
        return self.execute(batch)

    def close(self) -> None:
        self.num_closed += 1


def toy_engine(
    *,
    num_blocks: int = 64,
    num_host_blocks: int = 0,
    preemption_mode: str = "by_branches",
    block_size: int = 4,
    max_model_len: int = 64,
    max_num_seqs: int = 16,
    max_num_batched_tokens: int = 64,
    seed: int = 0,
    max_logprobs: int = 20,
    async_scheduling: bool = False,
    enable_prefix_caching: bool = True,
    pinned_prefix_budget: float = 0.25,
    **others: Any,
) -> LLMEngine:
    """An engine around the toy model. others: fields of EngineConfig."""
    config = EngineConfig(
        model="toy",
        block_size=block_size,
        preemption_mode=preemption_mode,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        seed=seed,
        max_logprobs=max_logprobs,
        async_scheduling=async_scheduling,
        enable_prefix_caching=enable_prefix_caching,
        pinned_prefix_budget=pinned_prefix_budget,
        **others,
    )
    worker = ToyWorker(num_blocks, num_host_blocks, max_model_len)
    return LLMEngine.with_parts(config, worker, ToyTokenizer())  # type: ignore[arg-type]
