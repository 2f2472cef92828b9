"""LLM.chat, the queue of enqueue(), and what an LLM does not have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastpaged import LLM, EngineClosedError, InvalidRequestError, SamplingParams, UnsupportedFeatureError

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
SMALL: dict[str, Any] = {"isa": "scalar", "num_threads": 1, "num_blocks": 64, "max_num_batched_tokens": 64}
HELLO = [{"role": "user", "content": "the cat"}]
PROMPT = "<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), **SMALL) as llm:
        yield llm
        assert llm._inboxes == {}
        assert llm.engine.scheduler.num_free_blocks == llm.engine.scheduler.num_blocks


def test_a_chat_is_the_answer_to_the_prompt_that_the_template_makes(llm: LLM) -> None:
    (output,) = llm.chat(HELLO, GREEDY)
    token_ids = llm.get_tokenizer().encode(PROMPT, add_special_tokens=False)
    assert (output.prompt, output.prompt_token_ids) == (PROMPT, token_ids)
    assert output.outputs == llm.generate(token_ids, GREEDY)[0].outputs


def test_conversations_are_answered_together_and_in_order(llm: LLM) -> None:
    other = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    params = [GREEDY, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)]
    outputs = llm.chat([HELLO, other], params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [6, 2]
    assert outputs[0].outputs == llm.chat(HELLO, GREEDY)[0].outputs
    assert llm.chat([HELLO], GREEDY)[0].outputs == outputs[0].outputs


def test_a_chat_without_params_ends_after_sixteen_tokens_at_most(llm: LLM) -> None:
    assert 1 <= len(llm.chat(HELLO)[0].outputs[0].token_ids) <= 16


def test_a_content_in_parts_is_its_text(llm: LLM) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "the cat"}]}]
    assert llm.chat(parts, GREEDY)[0].outputs == llm.chat(HELLO, GREEDY)[0].outputs


def test_a_last_message_is_gone_on_with(llm: LLM) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "and the"}]
    (output,) = llm.chat(messages, GREEDY, add_generation_prompt=False, continue_final_message=True)
    assert output.prompt == PROMPT + "and the"


def test_a_template_of_one_s_own_its_tools_and_names_are_used(llm: LLM) -> None:
    (output,) = llm.chat(
        HELLO,
        GREEDY,
        chat_template="{{ messages[0].content }} {{ tools[0].name }} {{ mood }}",
        tools=[{"name": "clock"}],
        chat_template_kwargs={"mood": "calm"},
    )
    assert output.prompt == "the cat clock calm"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages: expected a non-empty list"),
        ("hello", "messages: expected a non-empty list"),
        ([{"role": "user"}], r"messages\[0\]\['content'\]: expected a string"),
        ([HELLO, []], r"conversations\[1\]: messages: expected a non-empty list"),
        ([HELLO, [{"content": "x"}]], r"conversations\[1\]: messages\[0\]\['role'\]: expected a string"),
        ([HELLO, [{"role": "user", "content": "a" * 9999}]], r"conversations\[1\]: This model's maximum context"),
    ],
)
def test_a_bad_conversation_is_named_and_nothing_runs(llm: LLM, messages: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{message}"):
        llm.chat(messages, GREEDY)
    assert not llm.engine.has_unfinished_requests()


@pytest.mark.parametrize("salt", ["", 7, "\ud800"])
def test_a_bad_salt_goes_by_the_name_under_which_it_was_given(llm: LLM, salt: Any) -> None:
    with pytest.raises(InvalidRequestError, match="^cache_salt must be "):
        llm.chat([HELLO, HELLO], GREEDY, cache_salt=salt)
    with pytest.raises(InvalidRequestError, match=r"^prompt\['cache_salt'\] must be "):
        llm.generate({"prompt": "a", "cache_salt": salt}, GREEDY)


@pytest.mark.parametrize(
    "ask", [lambda llm, **extra: llm.generate("a", **extra), lambda llm, **extra: llm.chat(HELLO, **extra)]
)
def test_there_are_no_adapters(llm: LLM, ask: Any) -> None:
    ask(llm, lora_request=None)
    with pytest.raises(InvalidRequestError, match="lora_request must be None, for there are no adapters, got 'x'"):
        ask(llm, lora_request="x")


def test_a_priority_is_refused_where_nobody_looks_at_it(llm: LLM) -> None:
    llm.generate("a", GREEDY, priority=None)
    with pytest.raises(InvalidRequestError, match=r"priority must be 0 without scheduling_policy='priority', got 1"):
        llm.generate(["a"], GREEDY, priority=[1])


# ---- enqueue


def test_what_was_enqueued_is_answered_together_in_its_order_and_once(llm: LLM) -> None:
    request_ids = llm.enqueue(["the cat", "a"], GREEDY)
    request_ids += llm.enqueue("b", SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    meanwhile = llm.generate("c", GREEDY)
    outputs = llm.wait_for_completion()
    assert [output.request_id for output in outputs] == request_ids
    assert meanwhile[0].request_id not in request_ids
    assert [output.outputs for output in outputs[:2]] == [out.outputs for out in llm.generate(["the cat", "a"], GREEDY)]
    assert len(outputs[2].outputs[0].token_ids) == 2
    assert llm.wait_for_completion() == []


def test_a_bad_prompt_is_refused_when_it_is_enqueued_and_none_of_its_list_is_kept(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"^prompts\[1\]: prompt must not be empty"):
        llm.enqueue(["a", ""], GREEDY)
    assert llm.wait_for_completion() == []


def test_enqueue_takes_neither_adapters_nor_priorities_that_nobody_looks_at(llm: LLM) -> None:
    for name, extra, allowed in (("lora_request", "x", "None"), ("priority", [1], "0 without scheduling_policy")):
        with pytest.raises(InvalidRequestError, match=f"^{name} must be {allowed}"):
            llm.enqueue("a", GREEDY, **{name: extra})  # type: ignore[arg-type]
    assert llm.enqueue("a", GREEDY, lora_request=None, priority=None)
    assert len(llm.wait_for_completion()) == 1


# ---- what is there for habit's sake, and what is not there


def test_outputs_have_the_attributes_people_read(llm: LLM) -> None:
    llm.reset_prefix_cache()
    (output,) = llm.generate("the cat", GREEDY)
    assert (output.num_cached_tokens, output.lora_request, output.kv_transfer_params) == (0, None, None)
    assert (output.encoder_prompt, output.encoder_prompt_token_ids) == (None, None)
    assert output.outputs[0].lora_request is None


@pytest.mark.parametrize(
    "name",
    [
        "enqueue_chat", "embed", "encode", "classify", "score", "reward", "get_metrics",
        "sleep", "wake_up", "start_profile", "stop_profile", "collective_rpc", "apply_model",
        "shutdown",
    ],
)  # fmt: skip
def test_a_method_that_is_not_there_says_why(llm: LLM, name: str) -> None:
    assert not hasattr(llm, name)
    with pytest.raises(UnsupportedFeatureError, match=rf"^LLM has no {name}\(\): \w"):
        getattr(llm, name)


def test_a_name_nobody_knows_is_an_ordinary_attribute_error(llm: LLM) -> None:
    with pytest.raises(AttributeError, match="'LLM' object has no attribute 'colour'"):
        getattr(llm, "colour")  # noqa: B009  # a name that a checker would refuse


def test_a_closed_llm_neither_chats_nor_enqueues(tiny_llama: Path) -> None:
    llm = LLM(str(tiny_llama), **SMALL)
    llm.close()
    for use in (
        lambda: llm.chat(HELLO),
        lambda: llm.enqueue("a"),
        llm.wait_for_completion,
        llm.get_default_sampling_params,
    ):
        with pytest.raises(EngineClosedError):
            use()
