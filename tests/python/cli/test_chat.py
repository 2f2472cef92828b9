"""`fastpaged chat` on the tiny model: what it answers, what it remembers, and how it is left."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_json, write_tiny_llama

from fastpaged import LLM, SamplingParams
from fastpaged.cli.engine_options import ENGINE_FIELDS, engine_arguments
from fastpaged.cli.main import _parser, main
from fastpaged.worker.worker import Worker

QUICK = ["--isa", "scalar", "--num-threads", "1", "--num-blocks", "32", "--temperature", "0", "--ignore-eos"]
LENGTH = ["--max-tokens", "5"]
PARAMS = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


def command(model: Path, *options: str) -> list[str]:
    return ["chat", str(model), *QUICK, *LENGTH, *options]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def answer(model: Path, *messages: dict[str, str]) -> str:
    """What the engine says to a whole conversation."""
    with LLM(str(model), isa="scalar", num_threads=1, num_blocks=32) as llm:
        return llm.chat(messages, PARAMS)[0].outputs[0].text


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pipes lines into the command."""

    def pipe(*texts: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(text + "\n" for text in texts)))

    return pipe


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, *typed: str | type[BaseException]) -> None:
    """Someone types these lines, or Ctrl-C or Ctrl-D, and then Ctrl-D."""
    events = iter([*typed, EOFError])

    def typed_line(_: str) -> str:
        event = next(events)
        if isinstance(event, str):
            return event
        raise event

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", typed_line)


def interrupt_at_step(monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    execute, count = Worker.execute, iter(range(1, 1000))

    def interrupted(worker: Worker, batch: Any) -> Any:
        if next(count) in steps:
            raise KeyboardInterrupt
        return execute(worker, batch)

    monkeypatch.setattr(Worker, "execute", interrupted)


def test_each_line_is_answered_with_what_was_said_before(
    tiny_llama: Path, lines: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    lines("the cat", "", "   ", "and then")
    assert main(command(tiny_llama)) == 0
    first = answer(tiny_llama, user("the cat"))
    second = answer(tiny_llama, user("the cat"), assistant(first), user("and then"))
    assert capsys.readouterr() == (f"{first}\n{second}\n", "")


def test_clear_forgets_and_exit_leaves(tiny_llama: Path, lines: Any, capsys: pytest.CaptureFixture[str]) -> None:
    lines("the cat", "/clear", "the cat", "/exit", "never answered")
    assert main(command(tiny_llama)) == 0
    first = answer(tiny_llama, user("the cat"))
    assert capsys.readouterr().out == f"{first}\n{first}\n"


def test_a_system_message_stays_at_the_beginning(
    tiny_llama: Path, lines: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    lines("the cat", "/clear", "the cat")
    assert main(command(tiny_llama, "--system", "be brief")) == 0
    expected = answer(tiny_llama, {"role": "system", "content": "be brief"}, user("the cat"))
    assert capsys.readouterr().out == f"{expected}\n" * 2


def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_a_terminal(monkeypatch, "the cat", "and then")
    interrupt_at_step(monkeypatch, 4)
    assert main(command(tiny_llama)) == 0
    shown, second = capsys.readouterr().out.removesuffix("\n\n").split("\n")
    whole = answer(tiny_llama, user("the cat"))
    assert shown != whole
    assert whole.startswith(shown)
    assert second == answer(tiny_llama, user("the cat"), assistant(shown), user("and then"))


def test_a_message_whose_answer_is_stopped_before_its_first_word_is_forgotten(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_a_terminal(monkeypatch, "the cat", "a dog")
    interrupt_at_step(monkeypatch, 1)
    assert main(command(tiny_llama)) == 0
    captured = capsys.readouterr()
    assert captured.out == f"\n{answer(tiny_llama, user('a dog'))}\n\n"
    assert "[stopped]" in captured.err


def test_ctrl_c_at_the_prompt_says_how_to_leave(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_a_terminal(monkeypatch, KeyboardInterrupt, "the cat")
    assert main(command(tiny_llama)) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{answer(tiny_llama, user('the cat'))}\n\n"
    assert captured.err.count("/exit or Ctrl-D leaves") == 2


def test_ctrl_c_between_piped_lines_ends_the_command(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(io.StringIO):
        def readline(self, *_: Any) -> str:  # type: ignore[override]  # StringIO's own stub says str too
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Interrupted())
    assert main(command(tiny_llama)) == 130


def test_a_message_too_long_is_told_at_a_terminal_and_ends_piped_lines(
    tiny_llama: Path, lines: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "x" * 2000
    lines(long, "the cat")
    assert main(command(tiny_llama)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fastpaged: error: This model's maximum context length is 512 tokens.")
    at_a_terminal(monkeypatch, long, "the cat")
    assert main(command(tiny_llama)) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{answer(tiny_llama, user('the cat'))}\n\n"
    assert "fastpaged: error: This model's maximum context length is 512 tokens." in captured.err


def test_an_answer_is_as_long_as_the_context_unless_told(
    tiny_llama: Path, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int | None] = []
    stream = LLM.stream

    def noted(llm: LLM, prompt: Any, params: SamplingParams, **terms: Any) -> Any:
        seen.append(params.max_tokens)
        return stream(llm, prompt, params, **terms)

    monkeypatch.setattr(LLM, "stream", noted)
    lines("the cat")
    assert main(["chat", str(tiny_llama), *QUICK, "--max-model-len", "32"]) == 0
    assert seen == [None]


@pytest.mark.parametrize(("options", "temperature"), [([], 0.25), (["--temperature", "0.5"], 0.5)])
@pytest.mark.parametrize("command", ["chat", "generate"])
def test_options_win_over_the_model_s_own_defaults_of_sampling(
    command: str, options: list[str], temperature: float, tmp_path: Path, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_llama(tmp_path)
    write_json(tmp_path / "generation_config.json", {"temperature": 0.25, "top_k": 7})
    seen: list[tuple[float, int]] = []
    stream = LLM.stream

    def noted(llm: LLM, prompt: Any, params: SamplingParams, **terms: Any) -> Any:
        seen.append((params.temperature, params.top_k))
        return stream(llm, prompt, params, **terms)

    monkeypatch.setattr(LLM, "stream", noted)
    lines("the cat")
    start = ["chat", str(tmp_path)] if command == "chat" else ["generate", "--model", str(tmp_path), "--prompt", "a"]
    assert main([*start, "--isa", "scalar", "--num-blocks", "32", *LENGTH, *options]) == 0
    assert seen == [(temperature, 7)]


def test_an_answer_that_fails_is_told_and_the_status_is_1(
    tmp_path: Path, lines: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from cli.test_cli import write_nan

    write_tiny_llama(tmp_path)
    write_nan(tmp_path / "model.safetensors", "model.norm.weight")
    lines("the cat")
    assert main(command(tmp_path)) == 1
    assert "the answer failed" in capsys.readouterr().err


def test_lines_are_piped_into_a_process_of_its_own(tiny_llama: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "fastpaged", *command(tiny_llama)],
        input=b"the cat\n\xff\xfe\n",
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, b"")
    first = answer(tiny_llama, user("the cat"))
    assert result.stdout.decode().startswith(first + "\n")


def test_a_closed_stdin_is_an_empty_one(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main(command(tiny_llama)) == 0


@pytest.mark.parametrize("start", [["chat", "m"], ["generate", "--model", "m", "--prompt", "a"]])
def test_every_command_has_every_engine_option_under_its_field_s_name(start: list[str]) -> None:
    values = {
        "tokenizer": "t", "revision": "v1", "download_dir": "d", "load_format": "gguf", "dtype": "float32",
        "max_model_len": -1, "block_size": 8, "num_blocks": 9, "kv_cache_memory_bytes": 1000, "max_num_seqs": 3,
        "max_num_batched_tokens": 64, "swap_space": 0.5, "preemption_mode": "swap", "num_threads": 2, "isa": "scalar",
        "pinned_prefix_budget": 0.5, "resume_grace_steps": 2, "prefill_share": 64, "scheduling_policy": "priority",
        "ageing_steps": 9, "queue_timeout": 1.5, "max_num_queued_requests": 7, "max_num_queued_tokens": 700,
        "kv_cache_dtype": "int8", "record": "FILE", "fault_trace_dir": "DIR",
    }  # fmt: skip
    assert {*values, "packed_cache", "async_scheduling", "enable_prefix_caching"} == set(ENGINE_FIELDS)
    options = [text for name, value in values.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    assert engine_arguments(_parser().parse_args([*start, *options])) == values
    assert engine_arguments(_parser().parse_args([*start, "--no-packed-cache"])) == {"packed_cache": False}
    assert engine_arguments(_parser().parse_args([*start, "--async-scheduling"])) == {"async_scheduling": True}
    for option, caching in (("--enable-prefix-caching", True), ("--no-enable-prefix-caching", False)):
        assert engine_arguments(_parser().parse_args([*start, option])) == {"enable_prefix_caching": caching}
    assert engine_arguments(_parser().parse_args(start)) == {}
