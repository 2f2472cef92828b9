"""`fastpaged generate` with several answers: drawn, the best of several, and searched for with beams."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fastpaged import LLM, BeamSearchParams, SamplingParams
from fastpaged.cli.main import main

ENGINE = ["--isa", "scalar", "--num-threads", "1", "--num-blocks", "32", "--max-num-seqs", "8"]
PROMPT = "the cat"


def generate(model: Path, *options: str) -> list[str]:
    return ["generate", "--model", str(model), *ENGINE, "--prompt", PROMPT, "--max-tokens", "6", *options]


def answers(capsys: pytest.CaptureFixture[str], model: Path, *options: str) -> list[dict[str, Any]]:
    assert main(generate(model, *options, "--json")) == 0
    shown: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["outputs"]
    return shown


def test_each_answer_stands_under_a_line_that_says_its_seed(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--n", "3", "--seed", "5"]
    expected = answers(capsys, tiny_llama, *options)
    assert main(generate(tiny_llama, *options)) == 0
    captured = capsys.readouterr()
    parts = re.split(r"--- answer (\d) of 3 \((\w+), seed (\d+)\)\n", captured.out)
    assert parts[0] == ""
    assert [(parts[i], parts[i + 1], parts[i + 2], parts[i + 3]) for i in range(1, len(parts), 4)] == [
        (str(i + 1), answer["finish_reason"], str(answer["seed"]), answer["text"] + "\n")
        for i, answer in enumerate(expected)
    ]
    num_tokens = sum(len(answer["token_ids"]) for answer in expected)
    assert captured.err.startswith(f"[{num_tokens} tokens (")


def test_of_the_best_of_several_one_is_shown_like_any_answer(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = answers(capsys, tiny_llama, "--n", "4", "--seed", "5", "--logprobs", "0")
    best = max(everything, key=lambda answer: answer["cumulative_logprob"])
    assert main(generate(tiny_llama, "--best-of", "4", "--seed", "5")) == 0
    captured = capsys.readouterr()
    assert captured.out == best["text"] + "\n"
    num_tokens = sum(len(answer["token_ids"]) for answer in everything)
    assert captured.err.startswith(f"[{num_tokens} tokens of 4 answers, 1 shown ({best['finish_reason']})")


def test_beams_stand_under_their_scores_and_each_has_its_table(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--beam-width", "3", "--length-penalty", "0.6", "--early-stopping", "never"]
    with LLM(str(tiny_llama), isa="scalar", num_threads=1, num_blocks=32) as llm:
        params = BeamSearchParams(3, 6, length_penalty=0.6, early_stopping="never")
        expected = llm.beam_search(PROMPT, params)[0].sequences
    shown = answers(capsys, tiny_llama, *options)
    assert [answer["token_ids"] for answer in shown] == [beam.output_token_ids for beam in expected]
    assert [answer["score"] for answer in shown] == [beam.score for beam in expected]
    assert main(generate(tiny_llama, *options, "--logprobs", "1")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("---")] == [
        f"--- answer {i + 1} of 3 ({beam.finish_reason}, score {beam.score:.4f})" for i, beam in enumerate(expected)
    ]
    assert sum(line.startswith("cumulative logprob") for line in lines) == 3


def test_fewer_than_all_beams_may_be_shown(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = answers(capsys, tiny_llama, "--beam-width", "4")
    assert len(every) == 4
    assert answers(capsys, tiny_llama, "--beam-width", "4", "--n", "1") == every[:1]
    assert main(generate(tiny_llama, "--beam-width", "4", "--n", "1")) == 0
    captured = capsys.readouterr()
    assert captured.out == every[0]["text"] + "\n", "a single answer needs no line above it"
    assert " tokens of 4 beams, 1 shown (" in captured.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--n", "0"], "error: --n must be an integer from 1 to 16384, got 0"),
        (["--best-of", "0"], "error: --best-of must be an integer from 1 to 16384, got 0"),
        (["--beam-width", "0"], "error: --beam-width must be an integer from 1 to 16384, got 0"),
        (["--beam-width", "0", "--n", "0"], "error: --n must be an integer from 1 to 16384, got 0"),
        (["--n", "2", "--temperature", "0"], "n must be 1 when the temperature is 0"),
        (["--n", "3", "--best-of", "2"], "error: --best-of must be an integer from --n = 3 to 16384, got 2"),
        (["--n", "3", "--beam-width", "2"], "error: --beam-width must be an integer from --n = 3 to 16384, got 2"),
        (["--beam-width", "2", "--best-of", "3"], "--best-of must not be given with --beam-width"),
        (["--beam-width", "2", "--temperature", "1", "--top-k", "5"], "--top-k must not be given with --beam-width"),
        (["--beam-width", "2", "--top-p", "0.5"], "--top-p must not be given with --beam-width: a search"),
        (["--beam-width", "2", "--min-p", "0.5"], "--min-p must not be given with --beam-width"),
        (["--length-penalty", "2"], "--length-penalty must not be given without --beam-width"),
        (["--early-stopping", "yes"], "--early-stopping must not be given without --beam-width"),
        (["--n", "9"], "n must be at most 8"),
    ],
)
def test_what_is_wrong_with_them_is_one_line(
    options: list[str], words: str, tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(generate(tiny_llama, *options)) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert words in captured.err


def test_what_a_model_says_of_drawing_is_left_out_of_a_search(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answers(capsys, tiny_llama, "--beam-width", "2")
    defaults = SamplingParams(temperature=0.7, top_p=0.9, top_k=40)
    monkeypatch.setattr(LLM, "get_default_sampling_params", lambda self: defaults)
    assert answers(capsys, tiny_llama, "--beam-width", "2") == expected
