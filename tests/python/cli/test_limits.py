"""Limits of time and of the queue, on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastpaged.cli.main import main
from fastpaged.config import EngineConfig
from fastpaged.engine.llm_engine import LLMEngine


def generate(model: Path, *options: str) -> list[str]:
    return ["generate", "--model", str(model), "--prompt", "the cat", "--max-tokens", "2", *options]


def test_an_answer_whose_time_is_up_says_so(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(generate(tiny_llama, "--deadline", "1e-9")) == 0
    captured = capsys.readouterr()
    assert captured.out == "\n"
    assert "[0 tokens (deadline)" in captured.err


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--deadline", "0", "deadline must be None or a number of seconds > 0, got 0.0"),
        ("--queue-timeout", "-1", "queue_timeout must be None or a number of seconds > 0, got -1.0"),
        ("--max-num-queued-requests", "0", "max_num_queued_requests must be None or an integer from 1"),
        ("--ageing-steps", "-1", "ageing_steps must be an integer from 0"),
    ],
)
def test_a_limit_that_is_none_is_one_line(
    option: str, value: str, words: str, tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(generate(tiny_llama, option, value)) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fastpaged: error: {words}")
    assert error.count("\n") == 1


def test_options_of_the_queue_reach_the_engine(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[EngineConfig] = []
    start = LLMEngine.__init__

    def noted_start(engine: LLMEngine, config: EngineConfig, **others: Any) -> None:
        configs.append(config)
        start(engine, config, **others)

    monkeypatch.setattr(LLMEngine, "__init__", noted_start)
    options = ["--scheduling-policy", "priority", "--prefill-share", "0", "--max-num-queued-tokens", "9"]
    assert main(generate(tiny_llama, *options)) == 0
    (config,) = configs
    assert (config.scheduling_policy, config.prefill_share, config.max_num_queued_tokens) == ("priority", 0, 9)
