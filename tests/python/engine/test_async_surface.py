"""What AsyncLLMEngine offers beside answers, and says as LLM does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from engine.async_tools import collect, run
from engine.fakes import toy_engine

from fastpaged import (
    LLM,
    AsyncEngineArgs,
    AsyncLLMEngine,
    InvalidRequestError,
    SamplingParams,
    UnsupportedFeatureError,
)
from fastpaged.absent_names import OF_ASYNC_LLM_ENGINE, OF_LLM

SMALL: dict[str, Any] = {"isa": "scalar", "num_threads": 1, "num_blocks": 16}


@contextmanager
def serving(model: Path, **arguments: Any) -> Iterator[AsyncLLMEngine]:
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(str(model), **SMALL, **arguments))
    try:
        yield engine
    finally:
        engine.shutdown()


# ---- defaults


def test_requests_without_params_get_the_model_s_own_defaults_as_with_an_llm(tiny_llama: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    defaults = {"eos_token_id": 2, "temperature": 0.5, "top_k": 7, "max_new_tokens": 5}
    (model / "generation_config.json").write_text(json.dumps(defaults), encoding="utf-8")
    with LLM(str(model), **SMALL) as llm:
        expected = [llm.generate("the cat")[0].outputs[0] for _ in range(2)]
        params = llm.get_default_sampling_params()
    with serving(model) as engine:
        assert engine.get_default_sampling_params() == params == SamplingParams(temperature=0.5, top_k=7, max_tokens=5)
        assert [run(collect(engine.generate("the cat")))[-1].outputs[0] for _ in range(2)] == expected


def test_without_a_tokenizer_ids_go_in_and_ids_come_out(tiny_llama: Path) -> None:
    with LLM(str(tiny_llama), skip_tokenizer_init=True, **SMALL) as llm:
        expected = llm.generate([5, 6, 7])[0].outputs[0]
    with serving(tiny_llama, skip_tokenizer_init=True) as engine:
        assert run(collect(engine.generate([5, 6, 7])))[-1].outputs[0] == expected
        with pytest.raises(InvalidRequestError, match="no tokenizer with skip_tokenizer_init=True"):
            engine.get_tokenizer()
    with serving(tiny_llama) as engine:
        assert engine.get_tokenizer().encode("the cat")


# ---- what is not there

ABSENT = (
    "encode", "pause_generation", "resume_generation", "sleep", "wake_up", "is_sleeping",
    "add_lora", "remove_lora", "list_loras", "pin_lora", "collective_rpc", "start_profile",
    "stop_profile", "do_log_stats", "add_request", "close",
)  # fmt: skip


def test_a_method_that_is_not_there_says_why() -> None:
    engine = AsyncLLMEngine.with_engine(toy_engine())
    for name in ABSENT:
        assert not hasattr(engine, name)
        with pytest.raises(UnsupportedFeatureError, match=rf"^AsyncLLMEngine has no {name}\(\): \w"):
            getattr(engine, name)
    with pytest.raises(AttributeError, match="'AsyncLLMEngine' object has no attribute 'colour'"):
        getattr(engine, "colour")  # noqa: B009  # a name that a checker would refuse
    engine.shutdown()


@pytest.mark.parametrize(("owner", "names"), [(LLM, OF_LLM), (AsyncLLMEngine, OF_ASYNC_LLM_ENGINE)])
def test_no_reason_is_given_for_what_is_there(owner: type, names: dict[str, str]) -> None:
    assert [name for name in names if hasattr(owner, name)] == []
