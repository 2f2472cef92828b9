"""What a call with a list of prompts says of each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, TypedDict, TypeVar, cast

from fastpaged.errors import InvalidRequestError
from fastpaged.sampling_params import SamplingParams

if TYPE_CHECKING:
    from fastpaged.engine.admission import Prompt
    from fastpaged.tokenizer.chat_messages import ChatMessage

T = TypeVar("T")


class Terms(TypedDict):
    """Arguments of LLMEngine.prepare(), which checks them."""

    priority: int
    deadline: float | None
    queue_timeout: float | None


def as_prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Token ids are one prompt."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if not isinstance(prompts, (list, tuple)):
        raise InvalidRequestError(f"prompts must be a prompt or a list of prompts, got {type(prompts).__name__}")
    if prompts and all(isinstance(item, Integral) for item in prompts):
        return [cast("list[int]", prompts)]
    return list(cast("Sequence[Prompt]", prompts))


def params_per_prompt(
    sampling_params: SamplingParams | Sequence[SamplingParams], num_prompts: int
) -> list[SamplingParams]:
    """One for all is one for each."""
    if isinstance(sampling_params, SamplingParams):
        return [sampling_params] * num_prompts
    if not isinstance(sampling_params, (list, tuple)):
        raise InvalidRequestError(
            f"sampling_params must be a SamplingParams or a list of them, got {type(sampling_params).__name__}"
        )
    if len(sampling_params) != num_prompts:
        raise InvalidRequestError(
            f"sampling_params must be one for all prompts or one per prompt ({num_prompts}), got {len(sampling_params)}"
        )
    return list(sampling_params)


def as_conversations(
    messages: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
) -> list[Sequence[ChatMessage]]:
    """A list whose items are all lists is one of conversations; any other is one conversation, right or wrong."""
    if isinstance(messages, (list, tuple)) and messages and all(isinstance(item, (list, tuple)) for item in messages):
        return list(cast("Sequence[Sequence[ChatMessage]]", messages))
    return [cast("Sequence[ChatMessage]", messages)]


def terms_per_prompt(
    num_prompts: int,
    priority: int | Sequence[int] | None,
    deadline: float | Sequence[float | None] | None,
    queue_timeout: float | Sequence[float | None] | None,
) -> list[Terms]:
    """Of each argument one value for all prompts, or one per prompt. priority: None is 0."""
    priorities = _per_prompt("priority", 0 if priority is None else priority, num_prompts)
    deadlines = _per_prompt("deadline", deadline, num_prompts)
    timeouts = _per_prompt("queue_timeout", queue_timeout, num_prompts)
    return [
        {"priority": own, "deadline": end, "queue_timeout": wait}
        for own, end, wait in zip(priorities, deadlines, timeouts, strict=True)
    ]


def _per_prompt(name: str, value: T | Sequence[T], num_prompts: int) -> list[T]:
    if not isinstance(value, (list, tuple)):
        return [cast("T", value)] * num_prompts
    if len(value) != num_prompts:
        raise InvalidRequestError(
            f"{name} must be one for all prompts or one per prompt ({num_prompts}), got {len(value)}"
        )
    return list(value)


def at_index(error: InvalidRequestError, called: str, index: int, count: int) -> InvalidRequestError:
    """The error with what it is about: nothing where there is one prompt."""
    return error if count == 1 else InvalidRequestError(f"{called}[{index}]: {error}")
