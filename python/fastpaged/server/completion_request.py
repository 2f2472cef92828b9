"""CompletionRequest: the body of POST /v1/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fastpaged.server.errors import ApiError
from fastpaged.server.generation_fields import GenerationFields

if TYPE_CHECKING:
    from fastpaged.sampling_params import SamplingParams


class CompletionRequest(GenerationFields):
    """prompt: a text, token ids, or a list of either, each of which has n choices of its own.

    max_tokens: 0 is allowed with echo or prompt_logprobs, which then tell of the prompt alone. echo: a choice begins
    with its prompt. logprobs: of each token, and of so many alternatives; with echo of the prompt's too.
    """

    # Each form gives up at the first item that is none of its own.
    prompt: (
        str
        | Annotated[list[str], Field(fail_fast=True)]
        | Annotated[list[int], Field(fail_fast=True)]
        | Annotated[list[list[int]], Field(fail_fast=True)]
    ) = Field(examples=["Once upon a time"])
    max_tokens: int | None = None
    logprobs: int | bool | None = None
    suffix: str | None = None

    def check_served(self) -> None:
        """ApiError for what there is nothing for, and for what contradicts itself."""
        super().check_served()
        if self.suffix:
            raise ApiError(501, "suffix is not supported by this server: no model here fills in", param="suffix")
        if self.logprobs is not None and int(self.logprobs) < 0:
            raise ApiError(400, f"logprobs must be an integer >= 0, got {self.logprobs}", param="logprobs")

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives; None: no logprobs."""
        if self.logprobs is None or self.logprobs is False:
            return None
        return int(self.logprobs)

    @property
    def is_scoring(self) -> bool:
        """Nothing is to be generated: what is asked for is the prompt's."""
        return self.max_tokens == 0 and (bool(self.echo) or self.prompt_logprobs is not None)

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to tell but the text."""
        return not (self.echo or self.is_scoring or self.return_token_ids) and self.num_logprobs is None

    def params(self, defaults: SamplingParams) -> SamplingParams:
        """What the engine is asked for: at least a token, and with echo the prompt's logprobs too."""
        max_tokens = defaults.max_tokens if self.max_tokens is None else self.max_tokens
        return self.sampling_params(
            defaults,
            max_tokens=1 if self.is_scoring else max_tokens,
            logprobs=self.num_logprobs,
            prompt_logprobs=self._num_prompt_logprobs,
        )

    @property
    def _num_prompt_logprobs(self) -> int | None:
        """The most that either of those who show them wants."""
        echoed = self.num_logprobs if self.echo else None
        if echoed is None or self.prompt_logprobs is None or self.prompt_logprobs < 0:
            return echoed if self.prompt_logprobs is None else self.prompt_logprobs
        return max(echoed, self.prompt_logprobs)
