"""BeamSearchParams: what LLM.beam_search() is asked for. Validated once, here, by the rules of SamplingParams."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fastpaged import param_checks as check
from fastpaged.sampling_params import MAX_N, RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class BeamSearchParams:
    """How wide to search for the likeliest answers, and when to stop.

    beam_width: answers that are followed at once, and the answers that come back, best first: 1 to 16,384, and at most
        the engine's max_num_seqs. Fewer come back where no more are possible, as with few allowed_token_ids.
    max_tokens: the most tokens of an answer; None is the rest of the model's context.
    temperature: divides the logits before the logprobs are taken; 0 and 1 change nothing.
    length_penalty, early_stopping: see SamplingParams.
    structured_outputs: None, for there are none yet.
    detokenize: make text. Without it both texts of a BeamSearchSequence stay empty.

    The others are fields of SamplingParams with the same meaning; penalties, logit_bias and bans act on the logprobs.

    Raises InvalidRequestError naming the field, the value and what is allowed.
    """

    beam_width: int
    max_tokens: int | None
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    include_stop_str_in_output: bool = False
    structured_outputs: None = None
    skip_special_tokens: bool = True
    allowed_token_ids: Sequence[int] | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    min_tokens: int = 0
    logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    detokenize: bool = True

    def __post_init__(self) -> None:
        allowed = f"an integer from 1 to {MAX_N}"
        object.__setattr__(self, "beam_width", check.integer("beam_width", self.beam_width, 1, MAX_N, allowed))
        params = self.sampling_params()
        for name in self.__dataclass_fields__:
            if name != "beam_width":
                object.__setattr__(self, name, getattr(params, name))

    def sampling_params(self) -> SamplingParams:
        """The same search as generate() takes it."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "beam_width"}
        return SamplingParams(
            n=self.beam_width, use_beam_search=True, output_kind=RequestOutputKind.FINAL_ONLY, **fields
        )
