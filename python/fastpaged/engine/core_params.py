"""What the core is told of a request's sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastpaged import _core

if TYPE_CHECKING:
    from fastpaged.engine.admission import EngineRequest


def core_params(request: EngineRequest, seed: int | None) -> _core.SamplingParams:
    """seed: None where nothing is drawn."""
    params = request.params
    num_logprobs = request.num_logprobs
    if num_logprobs is None and not params.use_beam_search and params.num_branches > params.n:
        num_logprobs = 0  # which of the answers are likeliest is asked, if not shown
    return _core.SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=seed or 0,
        num_logprobs=num_logprobs,
        num_prompt_logprobs=request.num_prompt_logprobs,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        min_tokens=params.min_tokens,
        logit_bias=dict(params.logit_bias or {}),
        allowed_token_ids=params.allowed_token_ids,
        end_token_ids=request.stop_token_ids if params.min_tokens > 0 else (),
        bad_words=request.bad_words,
        **_beams(request),
    )


def seeds_of(seed: int | None, num_samples: int) -> list[int | None]:
    """The seed of each sample of a request: a request with that seed draws the same alone."""
    return [None if seed is None else _core.mix_seed(seed, index) for index in range(num_samples)]


def _beams(request: EngineRequest) -> dict[str, Any]:
    params = request.params
    if not params.use_beam_search:
        return {}
    width = params.num_branches
    return {
        "beam_width": width,
        "length_penalty": params.length_penalty,
        "early_stopping": params.early_stopping,
        # So many of each beam's continuations that enough are left when those that end are taken away.
        "num_candidates": max(2, 1 + len(request.stop_token_ids)) * width,
        "has_stop_strings": bool(params.stop),
    }
