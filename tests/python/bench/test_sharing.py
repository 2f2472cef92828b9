"""Memory saved by sharing: on a tiny model, where it can be counted by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sharing

from fastpaged import LLM


@pytest.fixture
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), isa="scalar", enable_prefix_caching=False, packed_cache=False, max_model_len=256) as llm:
        yield llm


def test_samples_share_the_full_blocks_of_their_prompt(llm: LLM) -> None:
    block = llm.engine.config.block_size
    asked = [sharing.Asked(list(range(1, 2 * block + 1)), 5)]
    saving = sharing.measure(llm.engine, asked, "samples", 4, None)
    # One step with the prompt alone; then four with 4 branches, each of 2 shared blocks and one of its own.
    assert saving.num_steps == 5
    assert saving.mean_ratio == pytest.approx((1 + 4 * (12 / 6)) / 5)
    assert saving.saved == pytest.approx(1 - 5 / 9)
    assert saving.num_copies == 0
    assert "| 4 samples | 44.4 % | 8.5 % |" in sharing.table([saving])


def test_beams_share_more_than_samples_do(llm: LLM) -> None:
    asked = [sharing.Asked([5, 6, 7], 40), sharing.Asked([9] * 20, 40)]
    samples, beams = (sharing.measure(llm.engine, asked, kind, 4, None) for kind in sharing.KINDS)
    assert beams.saved > samples.saved > 0.0
    assert llm.engine.scheduler.num_held_blocks == 0


def test_lengths_are_alpacas_or_those_of_a_trace(tmp_path: Path) -> None:
    lengths = sharing.lengths_of(None, 200)
    assert sum(prompt for prompt, _ in lengths) / 200 == pytest.approx(19.3, rel=0.1)
    assert sum(out for _, out in lengths) / 200 == pytest.approx(58.45, rel=0.1)
    file = tmp_path / "some.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0.1,60,7\n0.2,30,5\n")
    assert sorted(sharing.lengths_of(file, 2)) == [(30, 5), (60, 7)]
