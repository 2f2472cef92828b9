"""Outputs every n tokens: the first, each n-th from there, and the last; nothing is lost between them."""

from __future__ import annotations

import itertools

from engine.fakes import ToyTokenizer, ToyWorker, toy_engine, toy_greedy
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpaged.config import EngineConfig
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.outputs import RequestOutput
from fastpaged.sampling_params import RequestOutputKind, SamplingParams

PROMPT = [70, 71, 72]


def outputs_of(engine: LLMEngine, params: SamplingParams) -> list[RequestOutput]:
    engine.add_request("r", PROMPT, params)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


def ends(interval: int, num_tokens: int) -> list[int]:
    """How many tokens there are at each output."""
    return sorted({*range(1, num_tokens, interval), num_tokens})


@settings(max_examples=40, deadline=None)
@given(interval=st.integers(1, 9), max_tokens=st.integers(1, 12), kind=st.sampled_from(RequestOutputKind))
def test_outputs_come_at_the_first_token_every_so_many_from_there_and_at_the_end(
    interval: int, max_tokens: int, kind: RequestOutputKind
) -> None:
    params = SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, stream_interval=interval, output_kind=kind, logprobs=0
    )
    expected = toy_greedy(PROMPT, max_tokens, stops=())
    outputs = outputs_of(toy_engine(), params)
    shown = [output.outputs[0] for output in outputs]
    if kind is RequestOutputKind.FINAL_ONLY:
        assert [answer.token_ids for answer in shown] == [expected]
    elif kind is RequestOutputKind.CUMULATIVE:
        assert [answer.token_ids for answer in shown] == [expected[:end] for end in ends(interval, max_tokens)]
    else:
        starts = [0, *ends(interval, max_tokens)]
        assert [answer.token_ids for answer in shown] == [
            expected[begin:end] for begin, end in itertools.pairwise(starts)
        ]
        assert [len(answer.logprobs or []) for answer in shown] == [len(answer.token_ids) for answer in shown]
    text = "".join(answer.text for answer in shown) if kind is RequestOutputKind.DELTA else shown[-1].text
    assert text == "".join(map(chr, expected))


def test_the_engine_s_interval_holds_for_requests_that_have_none_of_their_own() -> None:
    config = EngineConfig(model="toy", block_size=4, max_num_batched_tokens=64, stream_interval=3)
    engine = LLMEngine.with_parts(config, ToyWorker(64, 0, 64), ToyTokenizer())  # type: ignore[arg-type]
    for own, interval in ((None, 3), (2, 2)):
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, stream_interval=own)
        counts = [len(output.outputs[0].token_ids) for output in outputs_of(engine, params)]
        assert counts == ends(interval, 8)
