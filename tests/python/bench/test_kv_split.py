"""Where slots go under pressure: every split sums to all of them, and few are wasted."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import kv_split
import pytest


def test_lengths_are_read_or_made_up_like_them(tmp_path: Path) -> None:
    file = tmp_path / "some.csv.gz"
    file.write_bytes(gzip.compress(b"arrival_s,prompt_tokens,output_tokens\n0.1,41,313\n0.2,19,277\n"))
    assert kv_split.read_lengths(file) == [(41, 313), (19, 277)]
    lengths = kv_split.generated_lengths(4000, random.Random(1))
    assert sum(prompt for prompt, _ in lengths) / 4000 == pytest.approx(147, rel=0.1)
    assert sum(output for _, output in lengths) / 4000 == pytest.approx(342, rel=0.1)


def test_some_requests_want_samples_and_some_share_what_they_begin_with() -> None:
    requests = kv_split.load(1000, [(41, 313), (19, 277)])
    assert {(request.num_prompt_tokens, request.num_output_tokens) for request in requests} == {(41, 313), (19, 277)}
    assert 50 < sum(request.num_samples > 1 for request in requests) < 150
    assert 150 < sum(request.shared is not None for request in requests) < 250
    sharing = kv_split.SplitRequest(3, 5, shared=1)
    one, other = kv_split.prompt_of(0, sharing), kv_split.prompt_of(1, sharing)
    assert one[:400] == other[:400]
    assert not {*one[400:]} & {*other[400:]}


@pytest.mark.parametrize("block_size", [1, 16, 128])
def test_under_pressure_the_split_sums_to_all_slots_at_every_step(block_size: int) -> None:
    run = kv_split.run(kv_split.load(100, None), block_size, num_slots=4096)
    assert run.num_preemptions > 0
    assert run.means["free"] < 0.4  # mostly at the end, when nobody is left who waits
    assert run.means["saved"] > 0.01
    parts = sum(run.means[name] for name in ("token_states", "reserved", "internal_waste", "free"))
    assert parts == pytest.approx(1.0)
    if block_size == 1:
        assert run.means["internal_waste"] == 0.0
        assert run.token_state_share_after == 1.0
    if block_size == 16:
        assert run.token_state_share >= kv_split.LEAST_SHARE
        assert f"| 16 | {run.token_state_share:.2%} |" in kv_split.table([run])
    if block_size == 128:
        assert run.token_state_share < 0.9


def test_a_split_that_does_not_sum_up_is_an_error() -> None:
    class Split:
        num_slots, token_states, reserved, internal_waste, free = 16, 3, 1, 4, 7

    with pytest.raises(AssertionError, match="15 of 16 slots"):
        kv_split.check_sum(Split())  # type: ignore[arg-type]
