"""Pinned prefixes: kept while others come and go, until their time is up, and never in anybody's way."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine.fakes import POISON, toy_engine
from engine.test_prefix_cache import BLOCK, GREEDY, ask, clean

from fastpaged import LLM, EngineClosedError, InvalidRequestError, PinnedPrefix
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.engine.pinned_prefixes import COMPUTING
from fastpaged.errors import StepFailedError

ONCE = dataclasses.replace(GREEDY, max_tokens=1)
SMALL: dict[str, Any] = {"isa": "scalar", "num_threads": 1, "num_blocks": 64, "block_size": 4}


class Clock:
    """Stands still until it is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=[False, True], ids=["in turn", "overlapping"])
def engine(request: pytest.FixtureRequest) -> LLMEngine:
    """16 blocks, of which pins may have 8. Its steps overlap or do not."""
    return toy_engine(block_size=BLOCK, num_blocks=16, pinned_prefix_budget=0.5, async_scheduling=request.param)


def pin(engine: LLMEngine, prefix: list[int], ttl: float | None = None, cache_salt: str | None = None) -> PinnedPrefix:
    """As LLM.pin_prefix() does."""
    made = engine.pins.prepare(prefix, ttl, cache_salt)
    if not engine.pins.hold(made):
        engine.add_request("computes", made.prompt, COMPUTING)
        while engine.has_unfinished_requests():
            engine.step()
            engine.scheduler.check_invariants()
    return engine.pins.start_ttl(made)


def flood(engine: LLMEngine, seed: int) -> None:
    """Requests that, one after the other, want all the room there is beside pins."""
    for i in range(4):
        engine.add_request(f"flood{i}", clean(1000 + 10 * seed + i, 6 * BLOCK), ONCE)
    while engine.has_unfinished_requests():
        engine.step()
        engine.scheduler.check_invariants()


# ---- kept


def test_a_pinned_prefix_outlives_what_evicts_others(engine: LLMEngine) -> None:
    kept, other = clean(1, 3 * BLOCK), clean(2, 3 * BLOCK)
    ask(engine, other, ONCE)
    shown = pin(engine, kept)
    assert (shown.num_tokens, shown.num_blocks, shown.resident, shown.expires_ts) == (3 * BLOCK, 3, True, None)
    flood(engine, 1)
    assert engine.pins.all() == [shown]
    engine.add_request("a", [*kept, 70], ONCE)
    engine.add_request("b", [*other, 70], ONCE)
    found = {}
    while engine.has_unfinished_requests():
        found.update({output.request_id: output.num_cached_tokens for output in engine.step()})
    assert found == {"a": 3 * BLOCK, "b": 0}
    assert engine.scheduler.num_free_blocks == 16 - 3


def test_what_is_cached_already_is_pinned_without_computing_it(engine: LLMEngine) -> None:
    prefix = clean(3, 2 * BLOCK)
    ask(engine, prefix, ONCE)
    made = engine.pins.prepare(prefix, None, None)
    assert engine.pins.hold(made) is True
    assert engine.pins.start_ttl(made).resident


def test_whole_blocks_are_pinned_and_the_rest_is_not(engine: LLMEngine) -> None:
    shown = pin(engine, clean(4, 2 * BLOCK + 3))
    assert (shown.num_tokens, shown.num_blocks) == (2 * BLOCK, 2)
    assert engine.scheduler.num_free_blocks == 14


def test_an_unpinned_prefix_is_cached_as_others_are(engine: LLMEngine) -> None:
    prefix = clean(5, 2 * BLOCK)
    shown = pin(engine, prefix)
    assert engine.pins.release(shown.id) is True
    assert engine.pins.release(shown.id) is False
    assert engine.pins.all() == []
    assert engine.scheduler.num_free_blocks == 16
    assert ask(engine, prefix, ONCE).num_cached_tokens == 2 * BLOCK - 1
    flood(engine, 2)
    assert ask(engine, prefix, ONCE).num_cached_tokens == 0


def test_a_prefix_pinned_twice_stays_until_both_are_unpinned(engine: LLMEngine) -> None:
    prefix = clean(6, 2 * BLOCK)
    first, second = pin(engine, prefix), pin(engine, prefix)
    assert first.id != second.id
    engine.pins.release(first.id)
    flood(engine, 3)
    assert ask_among_pins(engine, [*prefix, 70]) == 2 * BLOCK


def ask_among_pins(engine: LLMEngine, prompt: list[int], salt: str | None = None) -> int:
    """num_cached_tokens of a request, while pins hold some of the pool."""
    engine.add_request("r", {"prompt_token_ids": prompt, **({} if salt is None else {"cache_salt": salt})}, ONCE)
    (output,) = engine.step()
    return output.num_cached_tokens


def test_a_pin_is_found_by_requests_of_its_salt_alone(engine: LLMEngine) -> None:
    prefix = clean(7, 2 * BLOCK)
    shown = pin(engine, prefix, cache_salt="tenant")
    assert shown.cache_salt == "tenant"
    assert ask_among_pins(engine, [*prefix, 70], "tenant") == 2 * BLOCK
    assert ask_among_pins(engine, [*prefix, 70]) == 0
    assert ask_among_pins(engine, [*prefix, 70], "other") == 0


# ---- until its time is up


def test_a_prefix_is_unpinned_when_its_time_is_up(engine: LLMEngine) -> None:
    engine.pins.clock = clock = Clock()
    long, short, ever = (pin(engine, clean(i, BLOCK), ttl) for i, ttl in ((8, 20), (9, 10.5), (10, None)))
    assert (long.expires_ts, short.expires_ts, ever.expires_ts) == (120.0, 110.5, None)
    clock.now = 110.25
    assert engine.pins.all() == [long, short, ever]
    clock.now = 110.5
    assert engine.pins.all() == [long, ever]
    assert engine.pins.release(short.id) is False
    assert engine.scheduler.num_free_blocks == 14
    clock.now = 1e9
    ask_among_pins(engine, clean(11, 5))  # a step looks at the clock, too
    assert engine.scheduler.num_free_blocks == 15
    assert engine.pins.all() == [ever]


def test_time_counts_from_when_the_prefix_is_there(engine: LLMEngine) -> None:
    engine.pins.clock = clock = Clock()
    made = engine.pins.prepare(clean(12, BLOCK), 10, None)
    engine.pins.hold(made)
    clock.now = 200.0
    assert [shown.expires_ts for shown in engine.pins.all()] == [None]
    assert engine.pins.start_ttl(made).expires_ts == 210.0


def test_who_is_unpinned_while_computing_is_told_so(engine: LLMEngine) -> None:
    made = engine.pins.prepare(clean(13, BLOCK), None, None)
    engine.pins.hold(made)
    engine.pins.release(made.id)
    with pytest.raises(InvalidRequestError, match=f"prefix {made.id} was unpinned while it was computed"):
        engine.pins.start_ttl(made)


# ---- in nobody's way


def test_a_request_that_needs_the_whole_pool_runs_and_the_pin_comes_back(engine: LLMEngine) -> None:
    kept = clean(14, 3 * BLOCK)
    shown = pin(engine, kept)
    # 15 blocks of prompt and one to grow into.
    output = ask_whole_pool(engine)
    assert output == 16 * BLOCK - 1 - (15 * BLOCK - 1)
    assert engine.pins.all() == [dataclasses.replace(shown, resident=False)]
    assert engine.scheduler.num_free_blocks == 16
    assert ask_among_pins(engine, [*kept, 70]) == 0
    assert engine.pins.all() == [shown]
    assert engine.scheduler.num_free_blocks == 13


def ask_whole_pool(engine: LLMEngine) -> int:
    """How many tokens a request got that needs every block of 16."""
    engine.add_request("whole", clean(15, 15 * BLOCK - 1), dataclasses.replace(GREEDY, max_tokens=BLOCK))
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
        engine.scheduler.check_invariants()
    assert outputs[-1].outputs[0].finish_reason == "length"
    return len(outputs[-1].outputs[0].token_ids)


def test_after_a_reset_a_pin_is_held_again_once_it_is_computed(engine: LLMEngine) -> None:
    kept = clean(16, 2 * BLOCK)
    shown = pin(engine, kept)
    engine.reset_prefix_cache()
    engine.scheduler.check_invariants()
    assert engine.pins.all() == [dataclasses.replace(shown, resident=False)]
    assert ask_among_pins(engine, [*kept, 70]) == 0
    assert engine.pins.all() == [shown]


# ---- what is refused


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ([], "prefix: prompt must hold at least one token, got none"),
        ("", "prefix: prompt must not be empty"),
        ([65] * 3, "prefix must fill at least one KV block of 4 tokens, got 3"),
        ([65] * 36, "prefix must fit the budget of pinned prefixes, 8 KV blocks of 4 tokens; it needs 9"),
        ([65] * 64, "This model's maximum context length is 64 tokens"),
        ([65, -1], r"prefix: prompt\[1\] must be a token id"),
        (7, "prefix: expected a string, token ids or messages, got int"),
        ({"prompt": "A"}, "prefix: expected a string, token ids or messages, got dict"),
        (None, "prefix: expected a string, token ids or messages, got NoneType"),
    ],
)
def test_what_can_never_be_pinned_is_refused_with_the_reason(engine: LLMEngine, prefix: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        engine.pins.prepare(prefix, None, None)
    assert engine.pins.all() == []


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 2e9, "1", True])
def test_a_time_that_is_none_is_refused(engine: LLMEngine, ttl: Any) -> None:
    with pytest.raises(InvalidRequestError, match="^ttl must be None, or a number of seconds above 0"):
        engine.pins.prepare([65] * 8, ttl, None)


@pytest.mark.parametrize("salt", ["", 7, b"a"])
def test_a_salt_that_is_none_is_refused(engine: LLMEngine, salt: Any) -> None:
    with pytest.raises(InvalidRequestError, match="^cache_salt must be a non-empty string"):
        engine.pins.prepare([65] * 8, None, salt)


def test_beyond_the_budget_need_and_have_are_named_and_unpinning_makes_room(engine: LLMEngine) -> None:
    first, _ = pin(engine, clean(17, 5 * BLOCK)), pin(engine, clean(18, 2 * BLOCK))
    message = "8 KV blocks of 4 tokens, of which pinned ones take 7; it needs 2. Unpin others, or give"
    with pytest.raises(InvalidRequestError, match=message):
        pin(engine, clean(19, 2 * BLOCK))
    assert len(engine.pins.all()) == 2
    engine.pins.release(first.id)
    assert pin(engine, clean(19, 2 * BLOCK)).resident


def test_without_the_cache_or_a_budget_nothing_can_be_pinned() -> None:
    with pytest.raises(InvalidRequestError, match="enable_prefix_caching must be True"):
        pin(toy_engine(enable_prefix_caching=False), [65] * 8)
    with pytest.raises(InvalidRequestError, match="0 KV blocks of 4 tokens; it needs 2"):
        pin(toy_engine(pinned_prefix_budget=0.0), [65] * 8)


@pytest.mark.parametrize("pin_id", ["0", None, True, 1.0])
def test_an_id_that_is_none_is_refused(engine: LLMEngine, pin_id: Any) -> None:
    with pytest.raises(InvalidRequestError, match="must be an int"):
        engine.pins.release(pin_id)


# ---- through LLM


@pytest.fixture(scope="module")
def shared_llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), pinned_prefix_budget=0.5, **SMALL) as llm:
        yield llm


@pytest.fixture
def llm(shared_llm: LLM) -> Iterator[LLM]:
    yield shared_llm
    for shown in shared_llm.pinned_prefixes():
        shared_llm.unpin_prefix(shown.id)
    assert shared_llm.engine.scheduler.num_free_blocks == shared_llm.engine.scheduler.num_blocks
    shared_llm.reset_prefix_cache()


TEXT = "the cat and the hat sat on the mat, and there they are"


def test_a_text_its_ids_and_a_conversation_are_pinned_and_found(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    of_text = llm.pin_prefix(TEXT)
    (output,) = llm.generate(TEXT + ", all of them", ONCE)
    assert of_text.resident
    assert output.num_cached_tokens >= of_text.num_tokens > 0
    ids = tokenizer.encode("on the other hand, the hat and the cat")
    of_ids = llm.pin_prefix(ids)
    assert llm.generate([[*ids, 70]], ONCE)[0].num_cached_tokens >= of_ids.num_tokens
    system = {"role": "system", "content": "answer as the cat would, with the hat on"}
    of_messages = llm.pin_prefix([system])
    (answer,) = llm.chat([system, {"role": "user", "content": "and then?"}], ONCE)
    assert answer.num_cached_tokens >= of_messages.num_tokens
    assert llm.pinned_prefixes() == [of_text, of_ids, of_messages]


def test_a_conversation_of_a_salt_finds_what_is_pinned_for_it(llm: LLM) -> None:
    system = {"role": "system", "content": "answer as the cat would, with the hat on"}
    messages = [system, {"role": "user", "content": "and then?"}]
    shown = llm.pin_prefix([system], cache_salt="tenant")
    assert llm.chat(messages, ONCE)[0].num_cached_tokens == 0
    assert llm.chat(messages, ONCE, cache_salt="tenant")[0].num_cached_tokens >= shown.num_tokens


def test_pinning_goes_on_beside_other_answers(llm: LLM) -> None:
    longer = dataclasses.replace(GREEDY, max_tokens=8)
    (expected,) = llm.generate("there the cat is", longer)
    stream = llm.stream("there the cat is", longer)
    next(stream)
    assert llm.pin_prefix(TEXT).resident
    *_, last = stream
    assert last.outputs[0] == expected.outputs[0]


def test_an_interrupted_pin_is_unpinned(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(llm.engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.pin_prefix(TEXT)
    monkeypatch.undo()
    assert llm.pinned_prefixes() == []
    assert not llm.engine.has_unfinished_requests()


def test_a_prefix_that_the_model_fails_on_is_not_pinned() -> None:
    llm = LLM.__new__(LLM)
    llm._engine, llm._inboxes, llm._next_request_id, llm._enqueued = toy_engine(), {}, 0, []
    with pytest.raises(StepFailedError, match="the prefix could not be computed"):
        llm.pin_prefix([65, 66, 67, POISON])
    assert llm.pinned_prefixes() == []
    llm.close()


def test_a_closed_llm_pins_and_forgets_nothing(tiny_llama: Path) -> None:
    llm = LLM(str(tiny_llama), **SMALL)
    llm.close()
    for use in (lambda: llm.pin_prefix(TEXT), llm.pinned_prefixes, lambda: llm.unpin_prefix(0), llm.reset_prefix_cache):
        with pytest.raises(EngineClosedError):
            use()


def test_messages_need_a_tokenizer(tiny_llama: Path) -> None:
    with LLM(str(tiny_llama), skip_tokenizer_init=True, **SMALL) as llm:
        with pytest.raises(InvalidRequestError, match="messages need a tokenizer, and there is none with"):
            llm.pin_prefix([{"role": "user", "content": "a"}])
        assert llm.pin_prefix(list(range(5, 15))).num_blocks == 2
