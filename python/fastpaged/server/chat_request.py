"""ChatCompletionRequest: the body of POST /v1/chat/completions, and the conversation in it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fastpaged.server.errors import ApiError
from fastpaged.server.generation_fields import GenerationFields

_NO_TOOLS = "tools are not supported by this server yet: leave it out"


class Conversation(BaseModel):
    """Messages, and how the chat template is to put them. chat_template_kwargs: more names for it."""

    model_config = ConfigDict(extra="allow", strict=True)

    messages: list[dict[str, Any]] = Field(examples=[[{"role": "user", "content": "What is the capital of France?"}]])
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None

    @property
    def template_arguments(self) -> dict[str, Any]:
        """Of Tokenizer.apply_chat_template(). ApiError for what contradicts itself."""
        if self.chat_template is not None:
            raise ApiError(
                501,
                "chat_template is not taken from requests: a template is a program. Start the server with one",
                param="chat_template",
            )
        goes_on = bool(self.continue_final_message)
        if goes_on and self.add_generation_prompt:
            raise ApiError(
                400,
                "add_generation_prompt must be false when continue_final_message is true, got true",
                param="add_generation_prompt",
            )
        names = dict(self.chat_template_kwargs or {})
        if self.documents is not None:
            names["documents"] = self.documents
        return {
            "add_generation_prompt": not goes_on if self.add_generation_prompt is None else self.add_generation_prompt,
            "continue_final_message": goes_on,
            "chat_template_kwargs": names,
        }


class ChatCompletionRequest(GenerationFields, Conversation):
    """max_tokens, max_completion_tokens: None is the rest of the context. logprobs: of each token, with top_logprobs
    alternatives. echo: a choice begins with the last message, if that is of the role that answers. tools, tool_choice
    and other formats than text are not there yet."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None

    def check_served(self) -> None:
        """ApiError for what there is nothing for, and for what contradicts itself."""
        if self.tools == []:
            raise ApiError(400, "tools must not be an empty list: leave it out", param="tools")
        if self.tool_choice not in (None, "none") and self.tools is None:
            raise ApiError(400, "tool_choice must be left out without tools", param="tool_choice")
        if self.tools is not None and self.tool_choice != "none":
            raise ApiError(501, _NO_TOOLS, param="tools")
        super().check_served()
        if self.max_completion_tokens is not None and self.max_completion_tokens < 1:
            what = f"max_completion_tokens must be an integer >= 1, got {self.max_completion_tokens}"
            raise ApiError(400, what, param="max_completion_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs must be left out unless logprobs is true", param="top_logprobs")
        if self.top_logprobs is not None and self.top_logprobs < 0:
            raise ApiError(400, f"top_logprobs must be an integer >= 0, got {self.top_logprobs}", param="top_logprobs")

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives; None: no logprobs."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def most_tokens(self) -> int | None:
        """Of an answer; None is the rest of the context."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
