"""transformers' own beam search, over a language model that is a table: its logits are random numbers that the whole
context seeds."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import transformers

VOCAB_SIZE = 40
_NO_HYPOTHESIS = -1e8  # transformers' places of hypotheses that were never found score less


def logits_of(context: Sequence[int]) -> npt.NDArray[np.float32]:
    """[VOCAB_SIZE] of what follows these tokens."""
    random = np.random.default_rng(zlib.crc32(bytes(context)))
    return random.normal(scale=1.5, size=VOCAB_SIZE).astype(np.float32)


@dataclass(frozen=True)
class Search:
    """A beam search, in the words of both sides."""

    prompt: list[int]
    width: int
    max_tokens: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    end_token_ids: list[int] = field(default_factory=list)
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    allowed_token_ids: list[int] | None = None


Hypotheses = list[tuple[list[int], float]]  # what was generated, an end token included, and its score; best first


class _TableModel(transformers.PreTrainedModel, transformers.GenerationMixin):  # type: ignore[misc]
    config_class = transformers.PretrainedConfig

    def __init__(self) -> None:
        super().__init__(transformers.PretrainedConfig(vocab_size=VOCAB_SIZE))
        self.nothing = torch.nn.Parameter(torch.zeros(1))  # it must have a device

    def forward(self, input_ids: torch.Tensor, **_: Any) -> transformers.modeling_outputs.CausalLMOutput:
        rows = [logits_of(context) for context in input_ids.tolist()]
        return transformers.modeling_outputs.CausalLMOutput(logits=torch.tensor(np.stack(rows))[:, None, :])


class _Allow(transformers.LogitsProcessor):  # type: ignore[misc]
    def __init__(self, token_ids: Sequence[int]) -> None:
        self._masked = torch.ones(VOCAB_SIZE, dtype=torch.bool)
        self._masked[list(token_ids)] = False

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(self._masked, -torch.inf)


def hypotheses_of_transformers(search: Search) -> Hypotheses:
    processors = []
    if search.allowed_token_ids is not None:
        processors.append(_Allow(search.allowed_token_ids))
    if search.logit_bias:
        bias = {(token_id,): value for token_id, value in search.logit_bias.items()}
        processors.append(transformers.SequenceBiasLogitsProcessor(bias))
    if search.min_tokens and search.end_token_ids:
        end = transformers.MinNewTokensLengthLogitsProcessor(
            len(search.prompt), search.min_tokens, search.end_token_ids
        )
        processors.append(end)
    if search.repetition_penalty != 1.0:
        processors.append(transformers.RepetitionPenaltyLogitsProcessor(search.repetition_penalty))
    config = transformers.GenerationConfig(
        num_beams=search.width,
        num_return_sequences=search.width,
        max_new_tokens=search.max_tokens,
        length_penalty=search.length_penalty,
        early_stopping=search.early_stopping,
        eos_token_id=search.end_token_ids or None,
        pad_token_id=0,
        do_sample=False,
        use_cache=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    with torch.no_grad():
        output = _TableModel().generate(
            torch.tensor([search.prompt]), config, logits_processor=transformers.LogitsProcessorList(processors)
        )
    found: Hypotheses = []
    for sequence, indices, score in zip(
        output.sequences.tolist(), output.beam_indices.tolist(), output.sequences_scores.tolist(), strict=True
    ):
        if score > _NO_HYPOTHESIS:
            length = sum(index >= 0 for index in indices)
            found.append((sequence[len(search.prompt) :][:length], score))
    return found
