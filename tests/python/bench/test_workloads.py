"""The workloads of bench/: fixed by seed and vocabulary, and of the lengths that they promise."""

from __future__ import annotations

from pathlib import Path

import pytest
import workloads

from fastpaged.cli.workload import read_workload


def sizes(name: str) -> tuple[int, int, int]:
    requests = workloads.make(name, 49152)
    return len(requests), sum(len(r["prompt"]) for r in requests), sum(r["out"] for r in requests)


def test_each_workload_has_the_tokens_it_promises() -> None:
    assert sizes("w1") == (1, 128, 128)
    assert sizes("w3") == (1, 4096, 16)
    assert sizes("w4") == (32, 32 * (1024 + 32), 32 * 32)
    count, num_prompt, num_out = sizes("w2")
    assert count == 64
    assert num_prompt == pytest.approx(10_200, rel=0.02) and num_out == pytest.approx(10_300, rel=0.02)


@pytest.mark.parametrize("vocab_size", [2, 3, 300, 49152])
@pytest.mark.parametrize("name", list(workloads.WORKLOADS))
def test_every_token_is_one_of_the_vocabulary(name: str, vocab_size: int) -> None:
    tokens = {token for request in workloads.make(name, vocab_size) for token in request["prompt"]}
    assert tokens <= set(range(vocab_size))


def test_a_seed_decides_the_tokens_and_never_the_lengths() -> None:
    first, again, other = (workloads.make("w2", 1000, seed) for seed in (1, 1, 2))
    assert first == again
    assert [r["prompt"] for r in first] != [r["prompt"] for r in other]
    assert [(len(r["prompt"]), r["out"]) for r in first] == [(len(r["prompt"]), r["out"]) for r in other]


def test_requests_of_w4_share_1024_tokens_and_no_more() -> None:
    prompts = [request["prompt"] for request in workloads.make("w4", 49152)]
    assert len({tuple(prompt[:1024]) for prompt in prompts}) == 1
    assert len({tuple(prompt[1024:]) for prompt in prompts}) == 32


def test_a_vocabulary_of_one_token_is_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size must be at least 2, got 1"):
        workloads.make("w1", 1)


def test_fastpaged_bench_reads_the_files(tmp_path: Path) -> None:
    files = workloads.write(tmp_path / "new", ["w1", "w2"], 500, seed=3)
    for name, path in files.items():
        expected = workloads.make(name, 500, seed=3)
        assert [(r.prompt, r.num_output_tokens) for r in read_workload(path)] == [
            (r["prompt"], r["out"]) for r in expected
        ]
