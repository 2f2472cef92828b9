"""Admission: the door of the engine. A request is checked here, once, and nothing behind the door checks it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING

from fastpaged.errors import InvalidRequestError
from fastpaged.sampling_params import SamplingParams

if TYPE_CHECKING:
    from fastpaged.tokenizer import Tokenizer

Prompt = str | list[int] | Mapping[str, object]

_PROMPT_KEYS = ("prompt", "prompt_token_ids")
_PROMPT_FORMS = "a string, a list of token ids, or a dict with 'prompt' or 'prompt_token_ids'"


@dataclass(frozen=True)
class EngineRequest:
    """A request that may run: tokenised, within every limit. num_logprobs counts alternatives; None is off."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    max_tokens: int
    num_logprobs: int | None
    stop_token_ids: list[int]


class Admission:
    """Turns (prompt, params) into an EngineRequest, or raises InvalidRequestError. Holds no state of requests."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        max_model_len: int,
        num_blocks: int,
        block_size: int,
        max_logprobs: int,
    ) -> None:
        """num_blocks: of the KV pool. max_logprobs: the most alternatives a request may ask for; -1 is the whole
        vocabulary."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._max_logprobs = vocab_size if max_logprobs == -1 else max_logprobs

    def admit(self, request_id: str, prompt: Prompt, params: SamplingParams) -> EngineRequest:
        """max_tokens beyond the rest of the context is cut to it."""
        if not isinstance(request_id, str) or not request_id:
            raise InvalidRequestError(f"request_id must be a non-empty string, got {request_id!r}")
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(f"sampling_params must be a SamplingParams, got {type(params).__name__}")
        text, token_ids = self._token_ids(prompt)
        self._check_length(len(token_ids))
        room = self._max_model_len - len(token_ids)
        return EngineRequest(
            request_id=request_id,
            prompt=text,
            prompt_token_ids=token_ids,
            params=params,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            num_logprobs=self._num_logprobs(params),
            stop_token_ids=[] if params.ignore_eos else sorted(self._tokenizer.eos_token_ids),
        )

    def _token_ids(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, Mapping):
            return self._from_mapping(prompt)
        if isinstance(prompt, str):
            return prompt, self._encode(prompt)
        if isinstance(prompt, (list, tuple)):
            return None, self._checked_ids("prompt", prompt)
        raise InvalidRequestError(f"prompt must be {_PROMPT_FORMS}, got {type(prompt).__name__}")

    def _from_mapping(self, prompt: Mapping[str, object]) -> tuple[str | None, list[int]]:
        """With both keys the ids are what runs, and the text is what RequestOutput.prompt shows."""
        if not prompt or any(key not in _PROMPT_KEYS for key in prompt):
            raise InvalidRequestError(f"prompt must be {_PROMPT_FORMS}, got a dict with keys {list(prompt)!r}")
        text = prompt.get("prompt")
        if "prompt" in prompt and not isinstance(text, str):
            raise InvalidRequestError(f"prompt['prompt'] must be a string, got {type(text).__name__}")
        if "prompt_token_ids" not in prompt:
            return str(text), self._encode(str(text))
        ids = prompt["prompt_token_ids"]
        if not isinstance(ids, (list, tuple)):
            raise InvalidRequestError(f"prompt['prompt_token_ids'] must be a list of ints, got {type(ids).__name__}")
        return None if text is None else str(text), self._checked_ids("prompt_token_ids", ids)

    def _encode(self, text: str) -> list[int]:
        if not text:
            raise InvalidRequestError("prompt must not be empty, got ''")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"prompt must be valid Unicode, got the lone surrogate {text[error.start]!r} at position {error.start}"
            ) from None
        return self._checked_ids("prompt", self._tokenizer.encode(text))

    def _checked_ids(self, name: str, ids: list[int] | tuple[object, ...]) -> list[int]:
        if not ids:
            raise InvalidRequestError(f"{name} must hold at least one token, got none")
        checked: list[int] = []
        for position, token_id in enumerate(ids):
            if isinstance(token_id, bool) or not isinstance(token_id, Integral):
                raise InvalidRequestError(f"{name}[{position}] must be an int, got {token_id!r}")
            number = int(token_id)
            if not 0 <= number < self._vocab_size:
                raise InvalidRequestError(
                    f"{name}[{position}] must be a token id in [0, {self._vocab_size}), got {number}"
                )
            checked.append(number)
        return checked

    def _check_length(self, num_tokens: int) -> None:
        """Names the longest prompt that would fit, and for the pool also the smallest pool."""
        kv_capacity = self._num_blocks * self._block_size
        longest = min(self._max_model_len - 1, kv_capacity)
        if num_tokens >= self._max_model_len:
            raise InvalidRequestError(
                f"This model's maximum context length is {self._max_model_len} tokens. However, the prompt has "
                f"{num_tokens} tokens, and at least 1 is needed for the answer. Please shorten the prompt to at most "
                f"{longest} tokens."
            )
        if num_tokens > kv_capacity:
            raise InvalidRequestError(
                f"The KV pool holds {kv_capacity} tokens, {self._num_blocks} blocks of {self._block_size}. However, "
                f"the prompt has {num_tokens} tokens. Please shorten the prompt to at most {longest} tokens, or give "
                f"the engine at least {-(-num_tokens // self._block_size)} num_blocks, or as much "
                f"kv_cache_memory_bytes."
            )

    def _num_logprobs(self, params: SamplingParams) -> int | None:
        if params.logprobs is None:
            return None
        wanted = self._vocab_size if params.logprobs == -1 else params.logprobs
        if wanted > self._max_logprobs:
            raise InvalidRequestError(
                f"logprobs must be at most max_logprobs = {self._max_logprobs}, got {params.logprobs}"
                + (f" (the whole vocabulary, {self._vocab_size})" if params.logprobs == -1 else "")
            )
        return min(wanted, self._vocab_size)
