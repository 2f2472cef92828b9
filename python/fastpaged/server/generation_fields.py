"""GenerationFields: what the bodies of both generating routes have in common, and the SamplingParams they make."""

from __future__ import annotations

import warnings
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fastpaged.sampling_params import RequestOutputKind, SamplingParams, as_token_id
from fastpaged.server.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Fields of a body that are fields of SamplingParams, by the same name.
_SAMPLING_FIELDS = (
    "n", "best_of", "use_beam_search", "length_penalty", "early_stopping", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "bad_words",
    "include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens",
    "spaces_between_special_tokens", "allowed_token_ids", "stream_interval",
)  # fmt: skip
_DRAWING = ("top_p", "top_k", "min_p")  # what a beam search has no use for, though the model's defaults may name it
_MOST_IDS = 1 << 18  # of one field: more than a vocabulary has, and each is looked at on the event loop

# Known, and not there: each may be absent, null or one of these.
_NOT_SERVED: Mapping[str, tuple[object, ...]] = {
    "structured_outputs": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "logprob_token_ids": (),
    "prompt_embeds": (),
    "logits_processors": ((), []),
    "kv_transfer_params": (),
    "repetition_detection": (),
    "thinking_token_budget": (-1,),
    "vllm_xargs": ({},),
}


class StreamOptions(BaseModel):
    """include_usage: a last event tells the tokens used; continuous_usage_stats: every event does."""

    model_config = ConfigDict(extra="allow", strict=True)
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationFields(BaseModel):
    """Absent and null are the same: the model's own default. What a value may be, SamplingParams says."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = Field(None, max_length=_MOST_IDS)
    bad_words: list[str] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    logit_bias: dict[str, float] | None = Field(None, max_length=_MOST_IDS)
    allowed_token_ids: list[int] | None = Field(None, max_length=_MOST_IDS)
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    stream_interval: int | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    deadline: float | None = None
    queue_timeout: float | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    def check_served(self) -> None:
        """ApiError for what there is nothing for, and for what contradicts itself."""
        wanted = (self.model_extra or {}).get("response_format")
        if isinstance(wanted, dict) and wanted.get("type") == "json_schema" and not wanted.get("json_schema"):
            what = "response_format must hold a json_schema with the type 'json_schema'"
            raise ApiError(400, what, param="response_format")
        for name, harmless in _NOT_SERVED.items():
            value = (self.model_extra or {}).get(name)
            if value is not None and value not in harmless:
                raise ApiError(501, f"{name} is not supported by this server yet: leave it out", param=name)
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options must be left out unless stream is true", param="stream_options")
        if self.stream and self.use_beam_search:
            raise ApiError(
                400,
                "stream must be false with use_beam_search: which beams are best is known at the end",
                param="stream",
            )
        if self.stream and self.prompt_logprobs is not None:
            raise ApiError(400, "prompt_logprobs must be left out when stream is true", param="prompt_logprobs")

    def sampling_params(
        self,
        defaults: SamplingParams,
        *,
        max_tokens: int | None,
        logprobs: int | None,
        prompt_logprobs: int | None = None,
    ) -> SamplingParams:
        """defaults: of what is not given; max_tokens: None is the rest of the context; prompt_logprobs:
        None is what the body says.

        Raises InvalidRequestError naming the field.
        """
        given = {name: getattr(self, name) for name in _SAMPLING_FIELDS if getattr(self, name) is not None}
        if self.use_beam_search:
            off = {field.name: field.default for field in fields(SamplingParams) if field.name in _DRAWING}
            given = off | {"temperature": 0.0} | given
        if self.logit_bias is not None:
            given["logit_bias"] = {as_token_id(key): bias for key, bias in self.logit_bias.items()}
        if prompt_logprobs is None:
            prompt_logprobs = self.prompt_logprobs
        counts: dict[str, Any] = {"max_tokens": max_tokens, "logprobs": logprobs, "prompt_logprobs": prompt_logprobs}
        kind = RequestOutputKind.DELTA if self.stream else RequestOutputKind.FINAL_ONLY
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a temperature that is raised: a server's log is not for one caller
            return replace(defaults, **given, **counts, output_kind=kind)

    def terms(self, longest: float | None) -> dict[str, Any]:
        """Arguments of AsyncLLMEngine.generate(). longest: seconds that no request may have more of."""
        deadline = longest if self.deadline is None else self.deadline
        if longest is not None and deadline is not None:
            deadline = min(deadline, longest) if deadline > 0 else deadline  # what is wrong stays so, to be refused
        return {
            "priority": 0 if self.priority is None else self.priority,
            "deadline": deadline,
            "queue_timeout": self.queue_timeout,
        }

    @property
    def unknown(self) -> list[str]:
        """Fields that nothing is known of; they are let pass."""
        return [name for name in self.model_extra or () if name not in _NOT_SERVED]

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the tokens used."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def has_continuous_usage(self) -> bool:
        """Whether every event of a stream has them."""
        return self.includes_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)
