"""Engine arguments at work on the tiny model: which tokenizer, whose defaults, and where they come from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_tiny_llama

from fastpaged import (
    LLM,
    AsyncEngineArgs,
    AsyncLLM,
    EngineArgs,
    InvalidRequestError,
    ModelFormatError,
    ModelNotFoundError,
    SamplingParams,
)

SMALL: dict[str, Any] = {"isa": "scalar", "num_threads": 1, "num_blocks": 16, "max_num_batched_tokens": 64}
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
IDS_ONLY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)


def make(model: Path, **arguments: Any) -> LLM:
    return LLM(str(model), **SMALL | arguments)


@pytest.fixture
def model(tiny_llama: Path, tmp_path: Path) -> Path:
    """A copy that may be written to."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


def write_generation_config(model: Path, **values: object) -> Path:
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": 2} | values), encoding="utf-8")
    return model


# ---- tokenizers


def test_the_tokenizer_may_be_another_s(tiny_llama: Path, tmp_path: Path) -> None:
    bare = write_tiny_llama(tmp_path / "bare", tokenizer=False)
    with pytest.raises(ModelNotFoundError, match="tokenizer.json"):
        make(bare)
    with make(bare, tokenizer=tiny_llama) as llm, make(tiny_llama) as expected:
        assert llm.generate("the cat", GREEDY)[0].outputs == expected.generate("the cat", GREEDY)[0].outputs


def test_a_tokenizer_that_is_not_there_is_named_as_the_argument_it_was(tiny_llama: Path, tmp_path: Path) -> None:
    nowhere, empty = tmp_path / "nowhere", tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ModelNotFoundError, match=rf"^tokenizer: nothing is at '{nowhere}'"):
        make(tiny_llama, tokenizer=nowhere)
    with pytest.raises(ModelNotFoundError, match=rf"^tokenizer: the folder '{empty}' must hold tokenizer.json"):
        make(tiny_llama, tokenizer=empty)
    (empty / "tokenizer.json").write_text("{")
    with pytest.raises(ModelFormatError, match=rf"^tokenizer: {empty}/tokenizer.json: "):
        make(tiny_llama, tokenizer=empty)


def test_a_revision_of_a_path_is_refused(tiny_llama: Path) -> None:
    for name in ("revision", "tokenizer_revision"):
        with pytest.raises(InvalidRequestError, match="revision must be None for a path"):
            make(tiny_llama, **{name: "v1"})


def test_without_a_tokenizer_ids_go_in_and_ids_come_out(tiny_llama: Path, tmp_path: Path) -> None:
    bare = write_tiny_llama(tmp_path / "bare", tokenizer=False)
    with make(tiny_llama) as llm:
        expected = llm.generate([5, 6, 7], GREEDY)[0].outputs[0]
    with make(bare, skip_tokenizer_init=True) as llm:
        (output,) = llm.generate([5, 6, 7], IDS_ONLY)
        assert (output.prompt, output.outputs[0].text) == (None, "")
        assert output.outputs[0].token_ids == expected.token_ids
        assert llm.get_default_sampling_params() == SamplingParams(detokenize=False)
        assert llm.generate([5, 6, 7])[0].finished


def test_without_a_tokenizer_what_needs_one_says_so(tiny_llama: Path) -> None:
    with make(tiny_llama, skip_tokenizer_init=True) as llm:
        with pytest.raises(
            InvalidRequestError, match="detokenize must be False with skip_tokenizer_init=True, got True"
        ):
            llm.generate([5], SamplingParams())
        with pytest.raises(InvalidRequestError, match="prompts must be token ids.* with skip_tokenizer_init=True"):
            llm.generate("text", IDS_ONLY)
        with pytest.raises(InvalidRequestError, match="no bad_words with skip_tokenizer_init=True"):
            llm.generate([5], SamplingParams(detokenize=False, bad_words=["a"]))
        with pytest.raises(InvalidRequestError, match="no tokenizer with skip_tokenizer_init=True"):
            llm.get_tokenizer()


def test_without_a_tokenizer_the_ends_are_those_of_the_files(model: Path) -> None:
    config = json.loads((model / "config.json").read_text()) | {"eos_token_id": [7, 8]}
    (model / "config.json").write_text(json.dumps(config))
    write_generation_config(model, eos_token_id=9)
    with make(model, skip_tokenizer_init=True) as llm:
        assert llm.engine.tokenizer.eos_token_ids == {7, 8, 9}
    write_generation_config(model, eos_token_id="x")
    with pytest.raises(ModelFormatError, match="generation_config.json: eos_token_id: expected a token id or a list"):
        make(model, skip_tokenizer_init=True)


# ---- defaults of sampling


def test_requests_without_params_get_the_model_s_own_defaults(model: Path) -> None:
    write_generation_config(
        model, temperature=0.5, top_k=7, top_p=0.9, min_p=0.1, repetition_penalty=1.2, do_sample=True
    )
    ours = SamplingParams(temperature=0.5, top_k=7, top_p=0.9, min_p=0.1, repetition_penalty=1.2)
    with make(model) as llm:
        assert llm.get_default_sampling_params() == ours
        plain = llm.generate("the cat")[0].outputs[0]
    with make(model) as llm:
        assert llm.generate("the cat", ours)[0].outputs[0] == plain
    with make(model) as llm:
        *_, last = llm.stream("the cat")
        assert last.outputs[0] == plain


@pytest.mark.parametrize("whose", ["fastpaged", "vllm"])
def test_the_model_s_defaults_may_be_left_out(model: Path, whose: str) -> None:
    write_generation_config(model, temperature=0.5)
    with make(model, generation_config=whose) as llm:
        assert llm.get_default_sampling_params() == SamplingParams()


def test_the_defaults_may_be_those_of_another_folder(model: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    write_generation_config(tmp_path / "other", max_new_tokens=3)
    with make(model, generation_config=tmp_path / "other") as llm:
        assert llm.get_default_sampling_params() == SamplingParams(max_tokens=3)
    with pytest.raises(ModelNotFoundError, match="generation_config must be .* a folder with generation_config.json"):
        make(model, generation_config=str(tmp_path / "nowhere"))


def test_an_override_wins_over_the_file(model: Path) -> None:
    write_generation_config(model, temperature=0.5, top_k=7)
    override = {"temperature": 0.75, "max_new_tokens": 9}
    with make(model, override_generation_config=override) as llm:
        assert llm.get_default_sampling_params() == SamplingParams(temperature=0.75, top_k=7, max_tokens=9)
    with pytest.raises(InvalidRequestError, match="a key of override_generation_config must be one of .*'heat'"):
        make(model, override_generation_config={"heat": 1})
    with pytest.raises(InvalidRequestError, match="override_generation_config: top_p must be .* got 2"):
        make(model, override_generation_config={"top_p": 2})


def test_a_default_of_the_file_that_is_out_of_range_names_the_file(model: Path) -> None:
    write_generation_config(model, top_p=2.0)
    with pytest.raises(ModelFormatError, match="generation_config.json: top_p must be .* got 2.0"):
        make(model)
    make(model, generation_config="fastpaged").close()


# ---- the rest


def test_an_llm_is_made_of_engine_args(tiny_llama: Path) -> None:
    with LLM.from_engine_args(EngineArgs(str(tiny_llama), **SMALL, seed=3)) as llm:
        assert llm.engine.config.seed == 3


def test_the_async_engine_is_made_of_engine_args_too(tiny_llama: Path) -> None:
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(str(tiny_llama), **SMALL))
    try:
        assert engine.is_running
    finally:
        engine.shutdown()
    with pytest.raises(InvalidRequestError, match="tensor_parallel_size must be 1"):
        AsyncLLM.from_engine_args(AsyncEngineArgs(str(tiny_llama), tensor_parallel_size=2))


def test_a_watermark_leaves_room_when_a_request_is_let_in(tiny_llama: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    scheduled = []
    for watermark in (0.0, 0.5):
        with make(tiny_llama, watermark=watermark, num_blocks=8) as llm:
            for request_id, token_id in (("a", 5), ("b", 6)):
                llm.engine.add_request(request_id, [token_id] * 48, params)
            llm.engine.step()
            scheduled.append(llm.engine.scheduler.num_free_blocks)
            while llm.engine.has_unfinished_requests():
                llm.engine.step()
    assert scheduled[0] < scheduled[1]


def test_the_log_says_where_the_time_of_the_start_went(tiny_llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="fastpaged"), LLM(str(tiny_llama), isa="scalar", num_threads=1, num_blocks=8):
        pass
    (line,) = [record.getMessage() for record in caplog.records if record.name == "fastpaged.start_up"]
    assert "(llama, bfloat16, scalar, 1 threads, 8 KV blocks of 16 tokens) is ready after" in line
    phases = [part.rsplit(" ", 2)[0] for part in line.split(" s: ")[1].split(", ")]
    assert phases == [
        "finding the model",
        "opening the model",
        "loading weights",
        "mapping KV memory",
        "recording the graph",
        "making the tokenizer",
    ]
