"""The command on the tiny model: what goes to stdout, what to stderr, and with which exit status."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_tiny_llama

import fastpaged
from fastpaged.cli.main import main
from fastpaged.cli.messages import Messages
from fastpaged.config import EngineConfig
from fastpaged.progress import ProgressBar
from fastpaged.tokenizer import Tokenizer, load_tokenizer

QUICK = ["--isa", "scalar", "--num-threads", "1", "--num-blocks", "32", "--temperature", "0", "--ignore-eos"]


def generate(model: Path, *options: str) -> list[str]:
    return ["generate", "--model", str(model), *QUICK, *options]


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "fastpaged", *command],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, **environment},
        check=False,
    )


def assert_one_line_error(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    for word in ("error:", *words):
        assert word in result.stderr


# ---- generate


def test_text_goes_to_stdout_and_figures_to_stderr(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(generate(tiny_llama, "--prompt", "the cat", "--max-tokens", "5")) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("[5 tokens (length), ")
    for moment in ("tok/s", "TTFT", "loaded", "first token", "done"):
        assert moment in captured.err
    assert captured.out.endswith("\n")
    assert captured.out.strip()


def test_json_is_one_object_with_the_fields_of_request_output(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(generate(tiny_llama, "--prompt", "the cat", "--max-tokens", "5", "--logprobs", "2", "--json")) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    output = json.loads(captured.out)
    assert set(output) == set(fastpaged.RequestOutput.__dataclass_fields__)
    (completion,) = output["outputs"]
    assert set(completion) == set(fastpaged.CompletionOutput.__dataclass_fields__)
    assert (output["prompt"], output["finished"], completion["finish_reason"]) == ("the cat", True, "length")
    for token_id, entry in zip(completion["token_ids"], completion["logprobs"], strict=True):
        assert str(token_id) in entry
        assert 2 <= len(entry) <= 3
    assert output["metrics"]["num_generation_tokens"] == len(completion["token_ids"]) == 5


def test_streamed_text_is_the_text_of_json(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(generate(tiny_llama, "--prompt", "the cat", "--max-tokens", "9", "--json"))
    text = json.loads(capsys.readouterr().out)["outputs"][0]["text"]
    main(generate(tiny_llama, "--prompt", "the cat", "--max-tokens", "9"))
    assert capsys.readouterr().out == text + "\n"


def test_a_stop_string_ends_the_answer_before_it(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(generate(tiny_llama, "--prompt", "the cat", "--max-tokens", "9", "--json"))
    text = json.loads(capsys.readouterr().out)["outputs"][0]["text"]
    stop = text[len(text) // 2 :][:2]
    options = ["--prompt", "the cat", "--max-tokens", "9", "--stop", "\0never", "--stop", stop]
    main(generate(tiny_llama, *options, "--json"))
    (completion,) = json.loads(capsys.readouterr().out)["outputs"]
    assert (completion["text"], completion["finish_reason"]) == (text[: text.index(stop)], "stop")
    assert completion["stop_reason"] == stop
    main(generate(tiny_llama, *options))
    assert capsys.readouterr().out == completion["text"] + "\n"


def test_chat_goes_through_the_template(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(generate(tiny_llama, "--chat", "hi", "--max-tokens", "1", "--json"))
    output = json.loads(capsys.readouterr().out)
    assert output["prompt"] == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    tokenizer = load_tokenizer(str(tiny_llama))
    assert output["prompt_token_ids"] == tokenizer.encode(output["prompt"], add_special_tokens=False)


def test_a_chat_template_writes_its_own_special_tokens(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, frames = Tokenizer.encode, []

    def noted(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = True) -> list[int]:
        frames.append(add_special_tokens)
        return encode(tokenizer, text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode", noted)
    main(generate(tiny_llama, "--chat", "hi", "--max-tokens", "1", "--json"))
    main(generate(tiny_llama, "--prompt", "hi", "--max-tokens", "1", "--json"))
    assert frames == [False, True]


def test_logprobs_show_a_table(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(generate(tiny_llama, "--prompt", "the cat", "--max-tokens", "3", "--logprobs", "2"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["token", "logprob", "rank", "alternatives"]
    assert len(lines) == 1 + 3 + 1
    assert lines[-1].startswith("cumulative logprob -")


def test_a_seed_repeats_the_answer(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seeds = {"7": set[str](), "8": set[str]()}
    for seed in ("7", "7", "8", "8"):
        options = ["--prompt", "the", "--seed", seed, "--temperature", "1.5", "--max-tokens", "12"]
        main(generate(tiny_llama, *options))
        seeds[seed].add(capsys.readouterr().out)
    assert [len(texts) for texts in seeds.values()] == [1, 1]
    assert seeds["7"] != seeds["8"]


def test_loading_shows_a_bar_on_a_terminal_and_takes_it_away(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    main(generate(tiny_llama, "--prompt", "the", "--max-tokens", "1"))
    drawn, _, after = terminal.getvalue().rpartition("\r")
    assert "[#" in drawn
    assert after.startswith("[1 tokens")  # nothing is left of the bar


# ---- errors


def test_a_model_that_is_not_there_is_one_line() -> None:
    assert_one_line_error(run(generate(Path("no/such/model.gguf"), "--prompt", "a")), "no/such/model.gguf")


def test_an_unsupported_isa_in_the_environment_is_one_line(tiny_llama: Path) -> None:
    command = ["generate", "--model", str(tiny_llama), "--prompt", "a"]
    assert_one_line_error(run(command, FASTPAGED_ISA="sparc"), "sparc", "scalar")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--prompt", ""], ["prompt", "empty"]),
        (["--prompt", "a", "--top-p", "0"], ["top_p", "(0, 1]", "0.0"]),
        (["--prompt", "a", "--presence-penalty", "3"], ["presence_penalty", "[-2, 2]", "3.0"]),
        (["--prompt", "a", "--frequency-penalty", "3"], ["frequency_penalty", "[-2, 2]", "3.0"]),
        (["--prompt", "a", "--repetition-penalty", "0"], ["repetition_penalty", "> 0", "0.0"]),
        (["--prompt", "a", "--min-tokens", "9", "--max-tokens", "3"], ["min_tokens", "max_tokens = 3", "9"]),
        (["--prompt", "a", "--stop", ""], ["stop", "empty"]),
        (["--prompt", "a", "--isa", "sparc"], ["sparc", "scalar"]),
        (["--prompt", "a" * 9999], ["maximum context length is 512 tokens"]),
        (["--prompt", "a", "--max-model-len", "513"], ["max_model_len", "512", "513"]),
        (["--prompt", "a", "--logprobs", "21"], ["max_logprobs", "20", "21"]),
        (["--prompt", "a", "--swap-space", "-1"], ["swap_space", "from 0", "-1.0"]),
        (["--prompt", "a", "--swap-space", "nan"], ["swap_space", "nan"]),
        (["--prompt", "a", "--swap-space", "4000000"], ["swap_space", "4000000.0 GiB", "need", "have"]),
        (["--prompt", "a", "--preemption-mode", "pause"], ["--preemption-mode", "'pause'", "recompute", "swap"]),
        (["--prompt", "a", "--max-tokens", "x"], ["--max-tokens", "'x'"]),
        (["--prompt", "a", "--chat", "b"], ["--chat", "--prompt"]),
        ([], ["--prompt", "--chat"]),
    ],
)
def test_a_users_error_is_one_line_and_status_two(
    options: list[str], words: list[str], tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(generate(tiny_llama, *options))
    except SystemExit as end:  # argparse leaves this way
        status = int(end.code or 0)
    captured = capsys.readouterr()
    assert_one_line_error(subprocess.CompletedProcess([], status, captured.out, captured.err), *words)


def test_ctrl_c_is_status_130_without_a_word(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastpaged.worker.worker import Worker

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Worker, "execute", interrupt)
    assert main(generate(tiny_llama, "--prompt", "a")) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("options", [[], ["--json"], ["--logprobs", "2"]])
def test_a_reader_that_goes_away_is_met_with_silence(tiny_llama: Path, options: list[str]) -> None:
    answer = generate(tiny_llama, "--prompt", "the", "--max-tokens", "200", *options)
    command = [sys.executable, "-m", "fastpaged", *answer]
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        result = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(write_end)
    assert (result.returncode, result.stderr) == (141, "")


def test_a_bug_of_ours_keeps_its_traceback(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastpaged.worker.worker import Worker

    def break_down(*_: Any) -> None:
        raise RuntimeError("invariant")

    monkeypatch.setattr(Worker, "execute", break_down)
    with pytest.raises(RuntimeError, match="invariant"):
        main(generate(tiny_llama, "--prompt", "a"))


# ---- the rest


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preemption_options_reach_the_engine(mode: str, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastpaged.engine.llm_engine import LLMEngine

    configs: list[EngineConfig] = []
    assemble = LLMEngine._assemble

    def noted(engine: LLMEngine, config: EngineConfig, *parts: Any) -> None:
        configs.append(config)
        assemble(engine, config, *parts)

    monkeypatch.setattr(LLMEngine, "_assemble", noted)
    options = ["--max-tokens", "1", "--swap-space", "0.25", "--preemption-mode", mode]
    assert main(generate(tiny_llama, "--prompt", "a", *options)) == 0
    assert [(config.swap_space, config.preemption_mode) for config in configs] == [(0.25, mode)]


def test_the_version_is_the_packages() -> None:
    result = run(["--version"])
    assert (result.returncode, result.stdout) == (0, f"fastpaged {fastpaged.__version__}\n")


def test_collect_env_names_what_a_bug_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect-env"]) == 0
    rows = dict(line.split(":", 1) for line in capsys.readouterr().out.splitlines())
    assert rows["fastpaged"].strip() == fastpaged.__version__
    assert rows["isa in use"].strip() in rows["isas supported"]
    for name in (
        "python",
        "platform",
        "cpu",
        "cpu features",
        "cpus available",
        "memory",
        "numpy",
        "tokenizers",
        "jinja2",
    ):
        assert name in rows
        assert rows[name].strip() or name == "cpu features"  # a plain CPU has none


def test_collect_env_shows_what_it_can_under_a_bad_isa() -> None:
    result = run(["collect-env"], FASTPAGED_ISA="sparc")
    assert result.returncode == 2
    assert "isas supported" in result.stdout
    assert result.stderr.count("\n") == 1
    assert "sparc" in result.stderr


# ---- streams, encodings, failures


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_stream_closed_before_the_start_does_not_stop_the_other(tiny_llama: Path, closed: str) -> None:
    options = ["--prompt", "a", "--max-tokens", "3"]
    command = shlex.join([sys.executable, "-m", "fastpaged", *generate(tiny_llama, *options)])
    result = subprocess.run(["bash", "-c", f"{command} {closed}"], capture_output=True, text=True, check=False)
    assert result.returncode == 0
    assert "Traceback" not in result.stderr
    assert (result.stdout == "") == (closed == ">&-")
    assert (result.stderr == "") == (closed == "2>&-")


def test_json_loses_nothing_on_a_stdout_that_is_not_utf_8(tiny_llama: Path) -> None:
    prompt = "日本 é 🙂"
    command = generate(tiny_llama, "--prompt", prompt, "--max-tokens", "2", "--json")
    result = run(command, PYTHONIOENCODING="ascii")
    assert result.returncode == 0
    assert json.loads(result.stdout)["prompt"] == prompt


def test_the_table_of_logprobs_is_written_row_by_row(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    class Recorder(io.StringIO):
        def reconfigure(self, **_: object) -> None:
            pass

        def flush(self) -> None:
            written.append(self.getvalue())

    monkeypatch.setattr(sys, "stdout", Recorder())
    assert main(generate(tiny_llama, "--prompt", "a", "--max-tokens", "5", "--logprobs", "2")) == 0
    lines = [text.count("\n") for text in written[:5]]
    assert lines == [2, 3, 4, 5, 7]  # header and first row, a row each, the last with the footer


def write_nan(file: Path, name: str) -> None:
    """Over the first value of a bfloat16 tensor."""
    content = bytearray(file.read_bytes())
    header_size = int.from_bytes(content[:8], "little")
    begin = 8 + header_size + json.loads(content[8 : 8 + header_size])[name]["data_offsets"][0]
    content[begin : begin + 2] = (0x7FC0).to_bytes(2, "little")
    file.write_bytes(content)


@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_a_request_that_fails_says_why_and_exits_with_1(tmp_path: Path, json_flag: list[str]) -> None:
    write_tiny_llama(tmp_path)
    write_nan(tmp_path / "model.safetensors", "model.norm.weight")
    result = run(generate(tmp_path, "--prompt", "a", "--max-tokens", "3", *json_flag))
    assert result.returncode == 1
    errors = result.stderr.splitlines()[0 if json_flag else 1 :]  # without the figures
    assert errors == ["fastpaged: error: the request failed: the model's logits held a NaN"]
    if json_flag:
        assert json.loads(result.stdout)["outputs"][0]["finish_reason"] == "error"


def test_a_warning_is_one_line_without_a_source(tiny_llama: Path) -> None:
    command = ["generate", "--model", str(tiny_llama), "--prompt", "a", "--max-tokens", "1", "--temperature", "0.005"]
    lines = run(command).stderr.splitlines()
    assert lines[0] == "fastpaged: warning: temperature 0.005 is raised to 0.01; 0 is greedy"


def test_a_small_pool_is_a_warning_of_one_line(tiny_llama: Path) -> None:
    lines = run(generate(tiny_llama, "--prompt", "a", "--max-tokens", "1", "--num-blocks", "2")).stderr.splitlines()
    assert lines[0].startswith("fastpaged: warning: The KV pool holds 32 tokens")
    assert lines[1].startswith("[1 tokens")


def test_a_warning_takes_the_bar_off_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    bar = ProgressBar(terminal)
    with Messages(bar):
        bar("loading weights", 1, 2)
        logging.getLogger("fastpaged.weights").warning("something\nodd")
    before, _, after = terminal.getvalue().partition("fastpaged: warning: something odd\n")
    assert "[#" in before
    assert before.endswith(" \r")
    assert after == ""


def test_a_number_that_json_has_not_is_null(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = fastpaged.LLM.stream

    def impossible(*args: Any, **terms: Any) -> Iterator[fastpaged.RequestOutput]:
        for output in stream(*args, **terms):
            completion = dataclasses.replace(output.outputs[0], cumulative_logprob=-math.inf)
            yield dataclasses.replace(output, outputs=[completion])

    monkeypatch.setattr(fastpaged.LLM, "stream", impossible)
    assert main(generate(tiny_llama, "--prompt", "a", "--max-tokens", "1", "--logprobs", "1", "--json")) == 0
    (completion,) = json.loads(capsys.readouterr().out)["outputs"]
    assert completion["cumulative_logprob"] is None


def test_a_bug_of_ours_in_one_request_is_not_blamed_on_the_model(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = fastpaged.LLM.stream

    def broken(*args: Any, **terms: Any) -> Iterator[fastpaged.RequestOutput]:
        for output in stream(*args, **terms):
            try:
                raise RuntimeError("invariant")
            except RuntimeError:
                logging.getLogger("fastpaged.engine").exception("request failed")
            completion = dataclasses.replace(output.outputs[0], finish_reason="error")
            yield dataclasses.replace(output, outputs=[completion])

    monkeypatch.setattr(fastpaged.LLM, "stream", broken)
    assert main(generate(tiny_llama, "--prompt", "a", "--max-tokens", "1")) == 1
    captured = capsys.readouterr()
    assert "RuntimeError: invariant" in captured.err
    assert captured.err.endswith("fastpaged: error: the request failed: see the traceback above\n")


INTERRUPT_AT_AN_IMPORT = """
import sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}:
            {source}
sys.meta_path.insert(0, Interrupt())
"""
STARTS = (["-m", "fastpaged"], ["-c", "import sys; from fastpaged.__main__ import main; sys.exit(main())"])


# Python keeps a note of Ctrl-C in source text that it runs, as dataclasses do when they are defined: hence exec.
@pytest.mark.parametrize("start", STARTS, ids=["module", "script"])
@pytest.mark.parametrize("module", ["argparse", "fastpaged.cli.generate", "fastpaged.llm", "numpy"])
@pytest.mark.parametrize("source", ["raise KeyboardInterrupt", "exec('raise KeyboardInterrupt')"])
def test_ctrl_c_during_any_import_is_status_130_without_a_word(
    tiny_llama: Path, tmp_path: Path, start: list[str], module: str, source: str
) -> None:
    hook = INTERRUPT_AT_AN_IMPORT.format(module=module, source=source)
    (tmp_path / "sitecustomize.py").write_text(hook, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, *start, *generate(tiny_llama, "--prompt", "a", "--max-tokens", "1")]
    environment = {**os.environ, "PYTHONPATH": path}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_both_ways_to_start_the_command_begin_at_the_same_place() -> None:
    pyproject = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    assert 'fastpaged = "fastpaged.__main__:main"' in pyproject


def test_an_empty_chat_is_refused_like_an_empty_prompt(tiny_llama: Path) -> None:
    assert_one_line_error(run(generate(tiny_llama, "--chat", "")), "--chat", "empty")
