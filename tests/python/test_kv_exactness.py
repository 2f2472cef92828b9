"""Promise 1 with keys and values in 8 bits on every op table: the same request gives the same bits, however it is run.

A part of the matrix: test_exactness.py runs all of it with int8 and fp8_e4m3 on the best table of this CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from exactness import (
    Answer,
    Case,
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
from isas import EVERY_ISA, needs
from tiny_model import write_tiny_llama

from fastpaged import _core

MODES = ("swap", "recompute")
# Every other table in the two that are recommended; the third differs by what its codes are worth alone.
BEST = _core.default_isa()
CASES = [
    *(
        pytest.param((isa, dtype), marks=needs(isa), id=f"{isa}-{dtype}")
        for isa in _core.known_isas()
        if isa != BEST
        for dtype in ("fp8_e4m3", "int8")
    ),
    pytest.param((BEST, "fp8_e5m2"), id="best-fp8_e5m2"),
]
# Of the ways to run them: where slots lie otherwise, or are written and read in other steps.
CHOSEN = ("together again, poisoned", "staggered", "token budget 33", "blocks of 1", "blocks of 128", "1 threads")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_llama(path, seed=7)
    return path


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    # Prompts up to 300 tokens: the last ones cross a canonical span of the attention.
    return make_requests(12, vocab_size=256, max_prompt=300, max_tokens=8, seed=21)


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    isa, dtype = request.param
    return isa, dtype


@pytest.fixture(scope="module")
def alone(case: Case, model: Path, requests: list[Request]) -> list[Answer]:
    return run(Variant("alone", base_config(model, case), alone=True), requests)


def matrix(model: Path, case: Case) -> list[Variant]:
    *others, finest = variants(base_config(model, case), (1, 7, 64), (1, 16, 128), (1, 2))
    chosen = [variant for variant in others if variant.name in CHOSEN]
    assert len(chosen) == len(CHOSEN)
    return [*chosen, finest]


@pytest.mark.parametrize("isa", EVERY_ISA)
def test_answers_are_those_of_no_other_kind_of_cache(isa: str, model: Path, requests: list[Request]) -> None:
    """The matrix would also hold if a cache were never in 8 bits."""
    kinds = ("auto", "int8", "fp8_e4m3", "fp8_e5m2")
    found = [run(Variant(kind, base_config(model, (isa, kind))), requests) for kind in kinds]
    for i, answers in enumerate(found):
        assert all(first_difference(answers, others) is not None for others in found[:i]), kinds[i]


def test_answers_do_not_depend_on_how_requests_are_run_nor_on_what_is_in_the_prefix_cache(
    case: Case, alone: list[Answer], model: Path, requests: list[Request]
) -> None:
    for variant in map(warmed, matrix(model, case)):
        outcome = run_counted(variant, requests)
        difference = first_difference([*alone, *alone], outcome.answers)
        assert difference is None, f"{case}, {variant.name}: {difference}"
        assert not_found_again(variant, requests, outcome) is None


@pytest.mark.parametrize("mode", MODES)
def test_answers_do_not_depend_on_preemption(
    mode: str, case: Case, alone: list[Answer], model: Path, requests: list[Request]
) -> None:
    """By swap the scales go with their blocks, out and in again, past free blocks that are full of NaN."""
    together, *_, finest = matrix(model, case)
    for index, variant in enumerate((together, finest) if mode == "swap" else (finest,)):
        outcome = run_counted(by_force(variant, mode, seed=50 + index), requests)
        difference = first_difference(alone, outcome.answers)
        assert difference is None, f"{case}, {variant.name}: {difference}"
        assert min(outcome.num_preemptions) >= 1
        assert (outcome.cost.bytes_swapped_in > 0) == (mode == "swap")


@pytest.mark.parametrize("mode", MODES)
def test_answers_do_not_depend_on_a_pool_for_one(mode: str, case: Case, model: Path) -> None:
    requests = make_pressed_requests(6, vocab_size=256, max_tokens=18, seed=22)
    expected = run(Variant("alone", base_config(model, case), alone=True), requests)
    for variant in pressed_variants(base_config(model, case), mode, requests, block_size=4):
        outcome = run_counted(warmed(variant), requests)
        difference = first_difference([*expected, *expected], outcome.answers)
        assert difference is None, f"{case}, {variant.name}: {difference}"
        assert sum(outcome.num_preemptions) > 0


# ---- four samples, four beams


@pytest.fixture(scope="module")
def forked_requests() -> list[Request]:
    return make_forked_requests(8, vocab_size=256, max_prompt=70, max_tokens=8, seed=23)


@pytest.fixture(scope="module")
def forked_alone(case: Case, model: Path, forked_requests: list[Request]) -> list[Answer]:
    return run(Variant("alone", base_config(model, case), alone=True), forked_requests)


def test_samples_and_beams_take_the_scales_of_a_block_that_is_copied_on_write(
    case: Case, forked_alone: list[Answer], model: Path, forked_requests: list[Request]
) -> None:
    together, *_, finest = matrix(model, case)
    for variant in (warmed(together), warmed(finest)):
        outcome = run_counted(variant, forked_requests)
        difference = first_difference([*forked_alone, *forked_alone], outcome.answers)
        assert difference is None, f"{case}, {variant.name}: {difference}"


@pytest.mark.parametrize("mode", MODES)
def test_samples_and_beams_do_not_depend_on_preemption(
    mode: str, case: Case, forked_alone: list[Answer], model: Path, forked_requests: list[Request]
) -> None:
    together, *_ = matrix(model, case)
    outcome = run_counted(by_force(together, mode, seed=60), forked_requests)
    difference = first_difference(forked_alone, outcome.answers)
    assert difference is None, f"{case}: {difference}"
    assert min(outcome.num_preemptions) >= 1
