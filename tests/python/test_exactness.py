"""Promise 1 on a 2-layer model: the same request gives the same bits, however it is run, on every op table; and on the
best table of this CPU all of it again with keys and values in 8 bits (test_kv_exactness.py has the other tables)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from exactness import (
    Answer,
    Case,
    Outcome,
    Request,
    Variant,
    base_config,
    by_force,
    first_difference,
    make_forked_requests,
    make_pressed_requests,
    make_requests,
    not_found_again,
    pressed_variants,
    run,
    run_counted,
    variants,
    warmed,
)
from isas import needs
from tiny_model import write_tiny_llama

from fastpaged import _core

NUM_REQUESTS = 32
MODES = ("swap", "recompute")
NUM_VARIANTS = 16

# The best table is a parameter of its own: its matrix in 8 bits is run whichever it is.
CASES = [
    *(pytest.param((isa, "auto"), marks=needs(isa), id=isa) for isa in _core.known_isas()),
    *(pytest.param((_core.default_isa(), dtype), id=f"best-{dtype}") for dtype in ("int8", "fp8_e4m3")),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_llama(path, seed=7)
    return path


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    # Prompts up to 300 tokens: the last ones cross a canonical span of the attention.
    return make_requests(NUM_REQUESTS, vocab_size=256, max_prompt=300, max_tokens=12, seed=11)


@pytest.fixture(scope="module", params=CASES)
def alone(request: pytest.FixtureRequest, model: Path, requests: list[Request]) -> tuple[Case, list[Answer]]:
    case: Case = request.param
    return case, run(Variant("alone", base_config(model, case), alone=True), requests)


def matrix(model: Path, case: Case) -> list[Variant]:
    made = list(variants(base_config(model, case), (1, 7, 64), (1, 16, 128), (1, 2)))
    assert len(made) == NUM_VARIANTS
    return made


@pytest.mark.parametrize("index", range(NUM_VARIANTS))
def test_answers_do_not_depend_on_how_requests_are_run_nor_on_what_is_in_the_prefix_cache(
    index: int, alone: tuple[Case, list[Answer]], model: Path, requests: list[Request]
) -> None:
    case, expected = alone
    variant = warmed(matrix(model, case)[index])
    outcome = run_counted(variant, requests)
    difference = first_difference([*expected, *expected], outcome.answers)
    assert difference is None, f"{case}, {variant.name}: {difference}"
    assert not_found_again(variant, requests, outcome) is None


def test_a_pool_too_small_for_all_changes_no_answer(
    alone: tuple[Case, list[Answer]], model: Path, requests: list[Request]
) -> None:
    case, expected = alone
    config = replace(base_config(model, case), block_size=4, num_blocks=90, max_num_batched_tokens=64)
    variant = Variant("tiny pool", config, shuffle=9, poison=True)
    difference = first_difference(expected, run(variant, requests))
    assert difference is None, f"{case}: {difference}"
    difference = first_difference([*expected, *expected], run(warmed(variant), requests))
    assert difference is None, f"{case}, warm: {difference}"


@pytest.fixture(scope="module")
def pressed_requests() -> list[Request]:
    return make_pressed_requests(10, vocab_size=256, max_tokens=24, seed=12)


@pytest.fixture(scope="module")
def pressed_alone(
    alone: tuple[Case, list[Answer]], model: Path, pressed_requests: list[Request]
) -> tuple[Case, list[Answer]]:
    case, _ = alone
    return case, run(Variant("alone", base_config(model, case), alone=True), pressed_requests)


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
    mode: str, index: int, alone: tuple[Case, list[Answer]], model: Path, requests: list[Request]
) -> None:
    case, expected = alone
    variant = by_force(matrix(model, case)[index], mode, seed=index)
    outcome = run_counted(variant, requests)
    difference = first_difference(expected, outcome.answers)
    assert difference is None, f"{case}, {variant.name}: {difference}"
    assert min(outcome.num_preemptions) >= 1
    check_cost(outcome, mode)


@pytest.mark.parametrize("mode", MODES)
def test_answers_do_not_depend_on_preemption_in_small_blocks_and_odd_chunks(
    mode: str, alone: tuple[Case, list[Answer]], model: Path, requests: list[Request]
) -> None:
    case, expected = alone
    *_, finest = variants(base_config(model, case), (7,), (1,), ())
    outcome = run_counted(by_force(finest, mode, seed=20), requests)
    difference = first_difference(expected, outcome.answers)
    assert difference is None, f"{case}, {mode}: {difference}"
    assert min(outcome.num_preemptions) >= 1
    check_cost(outcome, mode)


@pytest.mark.parametrize("mode", MODES)
def test_answers_do_not_depend_on_preemption_with_the_prefix_cache_on(
    mode: str, alone: tuple[Case, list[Answer]], model: Path, requests: list[Request]
) -> None:
    case, expected = alone
    together, *_, finest = variants(base_config(model, case), (7,), (1,), ())
    for variant in (together, finest):
        outcome = run_counted(warmed(by_force(variant, mode, seed=30)), requests)
        difference = first_difference([*expected, *expected], outcome.answers)
        assert difference is None, f"{case}, {variant.name}: {difference}"
        assert min(outcome.num_preemptions) >= 1
        assert not_found_again(variant, requests, outcome) is None


@pytest.mark.parametrize("mode", MODES)
def test_answers_do_not_depend_on_a_pool_for_one_with_the_prefix_cache_on(
    mode: str, pressed_alone: tuple[Case, list[Answer]], model: Path, pressed_requests: list[Request]
) -> None:
    case, expected = pressed_alone
    for variant in pressed_variants(base_config(model, case), mode, pressed_requests, block_size=4):
        outcome = run_counted(warmed(variant), pressed_requests)
        difference = first_difference([*expected, *expected], outcome.answers)
        assert difference is None, f"{case}, {variant.name}: {difference}"
        assert sum(outcome.num_preemptions) > 0


@pytest.mark.parametrize("index", range(2))
@pytest.mark.parametrize("mode", MODES)
def test_answers_do_not_depend_on_a_pool_for_one_where_all_others_are_preempted(
    mode: str, index: int, pressed_alone: tuple[Case, list[Answer]], model: Path, pressed_requests: list[Request]
) -> None:
    case, expected = pressed_alone
    variant = list(pressed_variants(base_config(model, case), mode, pressed_requests, block_size=4))[index]
    outcome = run_counted(variant, pressed_requests)
    difference = first_difference(expected, outcome.answers)
    assert difference is None, f"{case}, {variant.name}: {difference}"
    assert outcome.num_preemptions[0] == 0
    assert min(outcome.num_preemptions[1:]) >= 1
    check_cost(outcome, mode)


# ---- four samples, four beams


@pytest.fixture(scope="module")
def forked_requests() -> list[Request]:
    return make_forked_requests(12, vocab_size=256, max_prompt=70, max_tokens=10, seed=13)


@pytest.fixture(scope="module")
def forked_alone(
    alone: tuple[Case, list[Answer]], model: Path, forked_requests: list[Request]
) -> tuple[Case, list[Answer]]:
    case, _ = alone
    return case, run(Variant("alone", base_config(model, case), alone=True), forked_requests)


FORKED_VARIANTS = ("staggered", "chunks of 7", "token budget 33", "8 at a time", "blocks of 16")


def forked_matrix(model: Path, case: Case) -> list[Variant]:
    *others, finest = matrix(model, case)
    return [*(variant for variant in others if variant.name in FORKED_VARIANTS), finest]


def test_samples_and_beams_do_not_depend_on_how_requests_are_run_nor_on_what_is_in_the_prefix_cache(
    forked_alone: tuple[Case, list[Answer]], model: Path, forked_requests: list[Request]
) -> None:
    case, expected = forked_alone
    assert all(len(branches) == 4 for branches, _ in expected)
    assert sum(len(set(branches)) == 4 for branches, _ in expected) == len(expected)
    for variant in map(warmed, forked_matrix(model, case)):
        outcome = run_counted(variant, forked_requests)
        difference = first_difference([*expected, *expected], outcome.answers)
        assert difference is None, f"{case}, {variant.name}: {difference}"
        assert sum(outcome.num_cached_tokens[len(forked_requests) :]) > 0


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_samples_and_beams_do_not_depend_on_preemption(
    mode: str, caching: bool, forked_alone: tuple[Case, list[Answer]], model: Path, forked_requests: list[Request]
) -> None:
    case, expected = forked_alone
    for index, variant in enumerate(forked_matrix(model, case)[:: 2 if caching else 1]):
        forced = by_force(variant, mode, seed=40 + index)
        outcome = run_counted(warmed(forced) if caching else forced, forked_requests)
        difference = first_difference([*expected, *expected] if caching else expected, outcome.answers)
        assert difference is None, f"{case}, {forced.name}: {difference}"
        assert min(outcome.num_preemptions) >= 1
        if not caching:
            check_cost(outcome, mode)


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_samples_and_beams_do_not_depend_on_a_pool_for_one(
    mode: str, caching: bool, forked_alone: tuple[Case, list[Answer]], model: Path, forked_requests: list[Request]
) -> None:
    case, expected = forked_alone
    need = max(
        -(-len(request.prompt) // 4) + request.params.num_branches * (-(-(request.params.max_tokens or 0) // 4) + 1)
        for request in forked_requests
    )
    config = replace(base_config(model, case), preemption_mode=mode, block_size=4, num_blocks=need, watermark=0.0)
    variant = Variant(f"{mode} for want of room", config, poison=True)
    outcome = run_counted(warmed(variant) if caching else variant, forked_requests)
    difference = first_difference([*expected, *expected] if caching else expected, outcome.answers)
    assert difference is None, f"{case}, {variant.name}: {difference}"
    assert sum(outcome.num_preemptions) > 0


def test_each_sample_is_what_a_request_of_its_own_with_the_shown_seed_gives(
    forked_alone: tuple[Case, list[Answer]], model: Path, forked_requests: list[Request]
) -> None:
    case, expected = forked_alone
    singles, wanted = [], []
    for request, (branches, of_prompt) in zip(forked_requests, expected, strict=True):
        params = request.params
        if params.n == 4 and params.best_of is None and not params.use_beam_search:
            for i, branch in enumerate(branches):
                seed = _core.mix_seed(params.seed or 0, i)
                singles.append(Request(request.prompt, replace(params, n=1, seed=seed)))
                wanted.append(((branch,), of_prompt))
    assert len(singles) >= 12
    difference = first_difference(wanted, run(Variant("singles", base_config(model, case)), singles))
    assert difference is None, f"{case}: {difference}"


def test_what_finds_no_room_on_the_host_is_recomputed(
    pressed_alone: tuple[Case, list[Answer]], model: Path, pressed_requests: list[Request]
) -> None:
    case, expected = pressed_alone
    variant = next(pressed_variants(base_config(model, case), "swap", pressed_requests, block_size=4))
    head_bytes = 16 * 2 if case[1] == "auto" else 16 + 4  # of bfloat16; a byte each and a scale
    kv_bytes_per_token = 2 * 2 * 2 * head_bytes  # K and V, layers, heads
    config = replace(variant.config, swap_space=3 * 4 * kv_bytes_per_token / 2**30)
    outcome = run_counted(replace(variant, config=config), pressed_requests)
    difference = first_difference(expected, outcome.answers)
    assert difference is None, f"{case}: {difference}"
    assert outcome.cost.bytes_swapped_out == outcome.cost.bytes_swapped_in > 0
    assert outcome.cost.tokens_recomputed > 0


def test_seeded_requests_differ_by_seed_and_repeat_by_seed(model: Path) -> None:
    """The matrix would also hold if nothing were ever drawn: it is."""
    from fastpaged.sampling_params import SamplingParams

    def ask(seed: int) -> Request:
        return Request((5, 6, 7), SamplingParams(temperature=1.0, seed=seed, max_tokens=12, ignore_eos=True))

    config = base_config(model, (_core.default_isa(), "auto"))
    first, second, again = run(Variant("seeds", config), [ask(1), ask(2), ask(1)])
    assert first == again
    assert first != second
