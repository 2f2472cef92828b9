"""Promise 1 on a 2-layer model: the same request gives the same bits, however it is run, on every op table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from exactness import (
    Answer,
    Outcome,
    Request,
    Variant,
    by_force,
    first_difference,
    make_pressed_requests,
    make_requests,
    pressed_variants,
    run,
    run_counted,
    variants,
    warmed,
)
from isas import EVERY_ISA
from tiny_model import write_tiny_llama

from fastpaged import _core
from fastpaged.config import EngineConfig

NUM_REQUESTS = 32
MODES = ("swap", "recompute")
NUM_VARIANTS = 16


def base_config(model: Path, isa: str) -> EngineConfig:
    return EngineConfig(
        model=str(model), isa=isa, max_model_len=400, block_size=16, num_blocks=320, max_num_seqs=32,
        max_num_batched_tokens=512, num_threads=2, enable_prefix_caching=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_llama(path, seed=7)
    return path


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    # Prompts up to 300 tokens: the last ones cross a canonical span of the attention.
    return make_requests(NUM_REQUESTS, vocab_size=256, max_prompt=300, max_tokens=12, seed=11)


@pytest.fixture(scope="module", params=EVERY_ISA)
def alone(request: pytest.FixtureRequest, model: Path, requests: list[Request]) -> tuple[str, list[Answer]]:
    isa: str = request.param
    return isa, run(Variant("alone", base_config(model, isa), alone=True), requests)


def matrix(model: Path, isa: str) -> list[Variant]:
    made = list(variants(base_config(model, isa), (1, 7, 64), (1, 16, 128), (1, 2)))
    assert len(made) == NUM_VARIANTS
    return made


def check_found(outcome: Outcome, requests: list[Request], block_size: int) -> None:
    """That each request found, the second time, what its first time left: full blocks of prompt and answer."""
    for i, request in enumerate(requests):
        length = len(request.prompt)
        left = (length + len(outcome.answers[i][0][0][0]) - 1) // block_size * block_size
        found = outcome.num_cached_tokens[len(requests) + i]
        assert found >= (min(left, length - 1) if request.params.prompt_logprobs is None else 0), f"request {i}"


@pytest.mark.parametrize("index", range(NUM_VARIANTS))
def test_answers_do_not_depend_on_how_requests_are_run_nor_on_what_is_in_the_prefix_cache(
    index: int, alone: tuple[str, list[Answer]], model: Path, requests: list[Request]
) -> None:
    isa, expected = alone
    variant = warmed(matrix(model, isa)[index])
    outcome = run_counted(variant, requests)
    difference = first_difference([*expected, *expected], outcome.answers)
    assert difference is None, f"{isa}, {variant.name}: {difference}"
    check_found(outcome, requests, variant.config.block_size)


def test_a_pool_too_small_for_all_changes_no_answer(
    alone: tuple[str, list[Answer]], model: Path, requests: list[Request]
) -> None:
    isa, expected = alone
    config = EngineConfig(
        model=str(model), isa=isa, max_model_len=400, block_size=4, num_blocks=90, max_num_seqs=32,
        max_num_batched_tokens=64, num_threads=2, enable_prefix_caching=False,
    )  # fmt: skip
    variant = Variant("tiny pool", config, shuffle=9, poison=True)
    difference = first_difference(expected, run(variant, requests))
    assert difference is None, f"{isa}: {difference}"
    difference = first_difference([*expected, *expected], run(warmed(variant), requests))
    assert difference is None, f"{isa}, warm: {difference}"


@pytest.fixture(scope="module")
def pressed_requests() -> list[Request]:
    return make_pressed_requests(10, vocab_size=256, max_tokens=24, seed=12)


@pytest.fixture(scope="module")
def pressed_alone(
    alone: tuple[str, list[Answer]], model: Path, pressed_requests: list[Request]
) -> tuple[str, list[Answer]]:
    isa, _ = alone
    return isa, run(Variant("alone", base_config(model, isa), alone=True), pressed_requests)


def check_cost(outcome: Outcome, mode: str) -> None:
    """That it was this means and no other; run_counted() has checked the sums."""
    cost = outcome.cost
    assert cost.num_preemptions == sum(outcome.num_preemptions)
    if mode == "swap":
        assert cost.bytes_swapped_out == cost.bytes_swapped_in > 0
        assert cost.tokens_recomputed == 0
    else:
        assert cost.bytes_swapped_out == cost.bytes_swapped_in == 0
        assert cost.tokens_recomputed > 0


@pytest.mark.parametrize("index", range(NUM_VARIANTS))
@pytest.mark.parametrize("mode", MODES)
def test_answers_do_not_depend_on_preemption_however_requests_are_run(
    mode: str, index: int, alone: tuple[str, list[Answer]], model: Path, requests: list[Request]
) -> None:
    isa, expected = alone
    variant = by_force(matrix(model, isa)[index], mode, seed=index)
    outcome = run_counted(variant, requests)
    difference = first_difference(expected, outcome.answers)
    assert difference is None, f"{isa}, {variant.name}: {difference}"
    assert min(outcome.num_preemptions) >= 1
    check_cost(outcome, mode)


@pytest.mark.parametrize("mode", MODES)
def test_answers_do_not_depend_on_preemption_in_small_blocks_and_odd_chunks(
    mode: str, alone: tuple[str, list[Answer]], model: Path, requests: list[Request]
) -> None:
    isa, expected = alone
    *_, finest = variants(base_config(model, isa), (7,), (1,), ())
    outcome = run_counted(by_force(finest, mode, seed=20), requests)
    difference = first_difference(expected, outcome.answers)
    assert difference is None, f"{isa}, {mode}: {difference}"
    assert min(outcome.num_preemptions) >= 1
    check_cost(outcome, mode)


@pytest.mark.parametrize("mode", MODES)
def test_answers_do_not_depend_on_preemption_with_the_prefix_cache_on(
    mode: str, alone: tuple[str, list[Answer]], model: Path, requests: list[Request]
) -> None:
    isa, expected = alone
    together, *_, finest = variants(base_config(model, isa), (7,), (1,), ())
    for variant in (together, finest):
        outcome = run_counted(warmed(by_force(variant, mode, seed=30)), requests)
        difference = first_difference([*expected, *expected], outcome.answers)
        assert difference is None, f"{isa}, {variant.name}: {difference}"
        assert min(outcome.num_preemptions) >= 1
        check_found(outcome, requests, variant.config.block_size)


@pytest.mark.parametrize("mode", MODES)
def test_answers_do_not_depend_on_a_pool_for_one_with_the_prefix_cache_on(
    mode: str, pressed_alone: tuple[str, list[Answer]], model: Path, pressed_requests: list[Request]
) -> None:
    isa, expected = pressed_alone
    for variant in pressed_variants(base_config(model, isa), mode, pressed_requests, block_size=4):
        outcome = run_counted(warmed(variant), pressed_requests)
        difference = first_difference([*expected, *expected], outcome.answers)
        assert difference is None, f"{isa}, {variant.name}: {difference}"
        assert sum(outcome.num_preemptions) > 0


@pytest.mark.parametrize("index", range(2))
@pytest.mark.parametrize("mode", MODES)
def test_answers_do_not_depend_on_a_pool_for_one_where_all_others_are_preempted(
    mode: str, index: int, pressed_alone: tuple[str, list[Answer]], model: Path, pressed_requests: list[Request]
) -> None:
    isa, expected = pressed_alone
    variant = list(pressed_variants(base_config(model, isa), mode, pressed_requests, block_size=4))[index]
    outcome = run_counted(variant, pressed_requests)
    difference = first_difference(expected, outcome.answers)
    assert difference is None, f"{isa}, {variant.name}: {difference}"
    assert outcome.num_preemptions[0] == 0
    assert min(outcome.num_preemptions[1:]) >= 1
    check_cost(outcome, mode)


def test_what_finds_no_room_on_the_host_is_recomputed(
    pressed_alone: tuple[str, list[Answer]], model: Path, pressed_requests: list[Request]
) -> None:
    isa, expected = pressed_alone
    variant = next(pressed_variants(base_config(model, isa), "swap", pressed_requests, block_size=4))
    kv_bytes_per_token = 2 * 2 * 2 * 16 * 2  # K and V, layers, heads, head size, bfloat16
    config = replace(variant.config, swap_space=3 * 4 * kv_bytes_per_token / 2**30)
    outcome = run_counted(replace(variant, config=config), pressed_requests)
    difference = first_difference(expected, outcome.answers)
    assert difference is None, f"{isa}: {difference}"
    assert outcome.cost.bytes_swapped_out == outcome.cost.bytes_swapped_in > 0
    assert outcome.cost.tokens_recomputed > 0


def test_seeded_requests_differ_by_seed_and_repeat_by_seed(model: Path) -> None:
    """The matrix would also hold if nothing were ever drawn: it is."""
    from fastpaged.sampling_params import SamplingParams

    def ask(seed: int) -> Request:
        return Request((5, 6, 7), SamplingParams(temperature=1.0, seed=seed, max_tokens=12, ignore_eos=True))

    config = base_config(model, _core.default_isa())
    first, second, again = run(Variant("seeds", config), [ask(1), ask(2), ask(1)])
    assert first == again
    assert first != second
