"""LLM on the tiny model: order, refusals, interruptions, and the end."""

from __future__ import annotations

import gc
import io
import itertools
import os.path
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastpaged import (
    LLM,
    EngineClosedError,
    InvalidRequestError,
    ModelNotFoundError,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
)

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
SMALL: dict[str, Any] = {"isa": "scalar", "num_threads": 1, "num_blocks": 64}


@pytest.fixture
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), **SMALL) as llm:
        yield llm
        assert_nothing_is_held(llm)
        assert llm._inboxes == {}  # one entry lost per request would be a leak nobody sees


def assert_nothing_is_held(llm: LLM) -> None:
    assert not llm.engine.has_unfinished_requests()
    assert llm.engine.scheduler.num_free_blocks == llm.engine.scheduler.num_blocks


def ids(output: RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


def interrupt_at_step(llm: LLM, step: int, error: type[BaseException]) -> None:
    """The worker raises at its step-th step from now, once."""
    worker: Any = llm.engine.worker
    execute = type(worker).execute
    count = 0

    def interrupted(batch: object) -> object:
        nonlocal count
        count += 1
        if count == step:
            del worker.execute
            raise error
        return execute(worker, batch)

    worker.execute = interrupted


# ---- generate


def test_results_come_in_input_order_whoever_ends_first(llm: LLM) -> None:
    prompts = ["a long one " * 5, "b", "the cat", "and"]
    lengths = [9, 1, 5, 2]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lengths]
    outputs = llm.generate(prompts, params)
    assert [output.prompt for output in outputs] == prompts
    assert [len(ids(output)) for output in outputs] == lengths
    assert all(output.finished for output in outputs)


@pytest.mark.parametrize("form", ["the cat", {"prompt": "the cat"}, "ids", {"prompt_token_ids": "ids"}])
def test_one_prompt_of_any_form_gives_the_same_answer(llm: LLM, form: Any) -> None:
    token_ids = llm.get_tokenizer().encode("the cat")
    prompt = token_ids if form == "ids" else form
    if isinstance(form, dict) and "prompt_token_ids" in form:
        prompt = {"prompt_token_ids": token_ids}
    assert [ids(output) for output in llm.generate(prompt, GREEDY)] == [ids(llm.generate("the cat", GREEDY)[0])]


def test_many_prompts_of_ids_are_not_one(llm: LLM) -> None:
    assert len(llm.generate([[5, 6], [7]], GREEDY)) == 2
    assert len(llm.generate([5, 6, 7], GREEDY)) == 1


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
def test_ids_of_numpy_are_as_good_as_python_s(llm: LLM, dtype: Any) -> None:
    expected = ids(llm.generate([5, 6, 7], GREEDY)[0])
    numbers = list(np.array([5, 6, 7], dtype=dtype))
    for prompts in (numbers, [numbers], tuple(numbers), {"prompt_token_ids": numbers}):
        (output,) = llm.generate(prompts, GREEDY)  # type: ignore[arg-type]
        assert (output.prompt_token_ids, ids(output)) == ([5, 6, 7], expected)


def test_no_prompts_give_no_results(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []


def test_without_params_the_defaults_hold(llm: LLM) -> None:
    completion = llm.generate("the cat")[0].outputs[0]
    assert 1 <= len(completion.token_ids) <= 16
    assert completion.seed is not None


def test_a_bad_prompt_names_its_index_and_nothing_runs(llm: LLM) -> None:
    interrupt_at_step(llm, 1, AssertionError)  # a step would be noticed
    with pytest.raises(InvalidRequestError, match=r"^prompts\[2\]: prompt must not be empty"):
        llm.generate(["a", "b", "", "d"], GREEDY)
    assert_nothing_is_held(llm)
    with pytest.raises(AssertionError):
        llm.generate("a", GREEDY)


def test_a_refused_list_draws_no_seed(llm: LLM, tiny_llama: Path) -> None:
    with pytest.raises(InvalidRequestError):
        llm.generate(["a", ""])
    with LLM(str(tiny_llama), **SMALL) as undisturbed:
        assert llm.generate("a")[0].outputs == undisturbed.generate("a")[0].outputs


def test_a_single_bad_prompt_is_not_given_an_index(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"^prompt must not be empty"):
        llm.generate("", GREEDY)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([GREEDY], r"one for all prompts or one per prompt \(2\), got 1"),
        ([], r"one per prompt \(2\), got 0"),
        ({"temperature": 0}, r"a SamplingParams or a list of them, got dict"),
        ([GREEDY, None], r"prompts\[1\]: sampling_params must be a SamplingParams, got NoneType"),
    ],
)
def test_params_that_do_not_match_the_prompts_are_refused(llm: LLM, params: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        llm.generate(["a", "b"], params)


@pytest.mark.parametrize("prompts", [7, None, b"a"])
def test_prompts_of_a_wrong_type_are_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(InvalidRequestError, match="prompts must be a prompt or a list of prompts"):
        llm.generate(prompts, GREEDY)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, MemoryError])
@pytest.mark.parametrize("step", [1, 3])
def test_an_interruption_aborts_and_leaves_the_llm_usable(llm: LLM, error: type[BaseException], step: int) -> None:
    expected = [ids(output) for output in llm.generate(["the cat", "a"], GREEDY)]
    interrupt_at_step(llm, step, error)
    with pytest.raises(error):
        llm.generate(["the cat", "a"], GREEDY)
    assert_nothing_is_held(llm)
    assert [ids(output) for output in llm.generate(["the cat", "a"], GREEDY)] == expected


def test_the_progress_line_counts_prompts_on_stderr(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], GREEDY, use_tqdm=True)
    captured = capsys.readouterr()
    assert "processed prompts" in captured.err
    assert "2/2" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(("use_tqdm", "is_terminal", "shown"), [(None, True, 1), (None, False, 0), (False, True, 0)])
def test_left_alone_the_progress_line_is_for_terminals(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, use_tqdm: bool | None, is_terminal: bool, shown: bool
) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", stderr)
    llm.generate(["a", "b"], GREEDY, use_tqdm=use_tqdm)
    assert ("2/2" in stderr.getvalue()) == bool(shown)


@pytest.mark.parametrize("use_tqdm", ["no", 0, list])
def test_a_use_tqdm_that_is_no_yes_or_no_is_refused_and_what_was_enqueued_stays(llm: LLM, use_tqdm: Any) -> None:
    request_ids = llm.enqueue("the cat", GREEDY)
    with pytest.raises(InvalidRequestError, match="^use_tqdm must be None, True or False"):
        llm.generate("a", GREEDY, use_tqdm=use_tqdm)
    with pytest.raises(InvalidRequestError, match="^use_tqdm must be None, True or False"):
        llm.wait_for_completion(use_tqdm=use_tqdm)
    assert [output.request_id for output in llm.wait_for_completion()] == request_ids


@pytest.mark.parametrize("use_tqdm", [None, True])
def test_without_a_stderr_there_is_no_progress_line(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, use_tqdm: bool | None
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert len(llm.generate(["a", "b"], GREEDY, use_tqdm=use_tqdm)) == 2


# ---- stream


def test_a_stream_grows_to_what_generate_gives(llm: LLM) -> None:
    expected = llm.generate("the cat", GREEDY)[0].outputs[0]
    outputs = list(llm.stream("the cat", GREEDY))
    assert [len(ids(output)) for output in outputs] == [1, 2, 3, 4, 5, 6]
    assert [output.finished for output in outputs] == [False] * 5 + [True]
    texts = [output.outputs[0].text for output in outputs]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert outputs[-1].outputs[0] == expected


def test_a_stream_refuses_at_the_call(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError):
        llm.stream("", GREEDY)


def test_a_stream_that_is_never_pulled_holds_nothing(llm: LLM) -> None:
    llm.stream("the cat", GREEDY)
    assert_nothing_is_held(llm)


def test_closing_a_stream_aborts_it(llm: LLM) -> None:
    stream: Any = llm.stream("the cat", GREEDY)
    next(stream)
    assert llm.engine.has_unfinished_requests()
    stream.close()
    assert_nothing_is_held(llm)


def test_streams_and_generate_may_be_interleaved(llm: LLM) -> None:
    expected = [ids(llm.generate(prompt, GREEDY)[0]) for prompt in ("the cat", "a", "b")]
    first, second = llm.stream("the cat", GREEDY), llm.stream("a", GREEDY)
    seen = [[ids(next(first)), ids(next(second))], [ids(next(first)), ids(next(second))]]
    assert ids(llm.generate("b", GREEDY)[0]) == expected[2]
    rest = [[ids(output) for output in first], [ids(output) for output in second]]
    for i in range(2):
        growth = [seen[0][i], seen[1][i], *rest[i]]
        assert [len(token_ids) for token_ids in growth] == [1, 2, 3, 4, 5, 6]
        assert growth[-1] == expected[i]


# ---- what a stream shows, and stop strings

# Seeds whose answers hold bytes that are no UTF-8, as those of a random model do, and prompts cut inside a character.
WILD = [
    SamplingParams(temperature=1.5, seed=seed, max_tokens=24, ignore_eos=True, skip_special_tokens=False)
    for seed in range(4)
]
CUT = [tuple(b"caf\xc3"), tuple(b"\xf0\x9f"), tuple(b"ab")]


def byte_ids(llm: LLM, raw: tuple[int, ...]) -> list[int]:
    """As tokens of one byte each: their ids follow the special tokens'."""
    tokenizer = llm.get_tokenizer()
    by_byte = {tokenizer._bytes_of(token_id): token_id for token_id in range(3, 259)}
    return [by_byte[bytes([byte])] for byte in raw]


def added_text(llm: LLM, prompt: list[int], token_ids: list[int]) -> str:
    """text(prompt + output) less what it shares with text(prompt)."""
    tokenizer = llm.get_tokenizer()
    before = tokenizer.decode(prompt, skip_special_tokens=False)
    whole = tokenizer.decode([*prompt, *token_ids], skip_special_tokens=False)
    return whole[len(os.path.commonprefix([before, whole])) :]  # noqa: RUF071 - of characters, as it says


@pytest.mark.parametrize("raw", CUT)
def test_deltas_add_up_to_the_answer_whose_text_is_what_the_output_adds_to_the_prompt(
    llm: LLM, raw: tuple[int, ...]
) -> None:
    prompt = byte_ids(llm, raw)
    broken = 0
    for params in WILD:
        expected = llm.generate(prompt, params)[0].outputs[0]
        assert expected.text == added_text(llm, prompt, expected.token_ids)
        broken += "\ufffd" in expected.text
        outputs = list(llm.stream(prompt, replace(params, output_kind=RequestOutputKind.DELTA)))
        assert [ids(output) for output in outputs] == [[token_id] for token_id in expected.token_ids]
        assert "".join(output.outputs[0].text for output in outputs) == expected.text
        assert [output.finished for output in outputs] == [False] * 23 + [True]
    assert broken > 0


@pytest.mark.parametrize("raw", CUT)
@pytest.mark.parametrize("included", [False, True])
def test_a_stop_string_cuts_the_answer_wherever_it_stands(llm: LLM, raw: tuple[int, ...], included: bool) -> None:
    prompt = byte_ids(llm, raw)
    for params in WILD:
        plain = llm.generate(prompt, params)[0].outputs[0]
        for start in range(0, len(plain.text) - 2, 3):
            stop = plain.text[start : start + 3]
            stopping = replace(params, stop=stop, include_stop_str_in_output=included, logprobs=1)
            answer = llm.generate(prompt, stopping)[0].outputs[0]
            shown = plain.text[: plain.text.index(stop)]
            assert (answer.text, answer.finish_reason, answer.stop_reason) == (shown + stop * included, "stop", stop)
            assert answer.token_ids == plain.token_ids[: len(answer.token_ids)]
            assert len(answer.logprobs or []) == len(answer.token_ids)
            assert_nothing_is_held(llm)


def test_a_stream_that_shows_the_end_alone_yields_once_and_generate_is_whole_whatever_the_kind(llm: LLM) -> None:
    expected = llm.generate("the cat", GREEDY)[0].outputs[0]
    for output_kind in RequestOutputKind:
        assert llm.generate("the cat", replace(GREEDY, output_kind=output_kind))[0].outputs[0] == expected
    final = list(llm.stream("the cat", replace(GREEDY, output_kind=RequestOutputKind.FINAL_ONLY)))
    assert [(output.finished, output.outputs[0]) for output in final] == [(True, expected)]


def test_deltas_made_in_the_steps_of_others_wait_for_their_reader(llm: LLM) -> None:
    expected = ids(llm.generate("the cat", GREEDY)[0])
    stream = llm.stream("the cat", replace(GREEDY, output_kind=RequestOutputKind.DELTA))
    first = ids(next(stream))
    llm.generate("a", GREEDY)
    assert [first, *(ids(output) for output in stream)] == [[token_id] for token_id in expected]


# ---- construction and the end


def test_an_unknown_argument_names_what_was_meant(tiny_llama: Path) -> None:
    with pytest.raises(TypeError, match=r"unknown argument 'max_model_length'; did you mean 'max_model_len'"):
        LLM(str(tiny_llama), max_model_length=64)
    with pytest.raises(TypeError, match=r"unknown argument 'zzz'; known: \['dtype'"):
        LLM(str(tiny_llama), zzz=1)


def test_a_model_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        LLM(str(tmp_path / "nowhere"))


def test_a_bad_engine_argument_is_refused_by_name(tiny_llama: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"block_size .*got 0"):
        LLM(str(tiny_llama), block_size=0)


def test_progress_counts_up_to_its_total(tiny_llama: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    LLM(str(tiny_llama), progress=lambda *call: calls.append(call), **SMALL).close()
    assert calls
    assert calls[-1][1] == calls[-1][2] > 0


def test_a_closed_llm_says_so_every_time(tiny_llama: Path) -> None:
    llm = LLM(str(tiny_llama), **SMALL)
    stream = llm.stream("a", GREEDY)
    next(stream)
    llm.close()
    llm.close()
    for use in (lambda: llm.generate("a"), lambda: llm.stream("a"), llm.get_tokenizer, lambda: next(stream)):
        with pytest.raises(EngineClosedError, match="closed"):
            use()


def test_leaving_the_with_block_closes(tiny_llama: Path) -> None:
    with LLM(str(tiny_llama), **SMALL) as llm:
        engine = llm.engine
    with pytest.raises(EngineClosedError):
        engine.step()


def test_close_frees_the_memory_without_a_garbage_collection(tiny_llama: Path) -> None:
    gc.disable()
    try:
        llm = LLM(str(tiny_llama), **SMALL)
        llm.generate("a", GREEDY)
        memory = weakref.ref(llm.engine.worker.kv_memory)
        llm.close()
        assert memory() is None
    finally:
        gc.enable()
