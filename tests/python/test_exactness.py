"""Promise 1 on a 2-layer model: the same request gives the same bits, however it is run, on every op table."""

from __future__ import annotations

from pathlib import Path

import pytest
from exactness import Answer, Request, Variant, first_difference, make_requests, run, variants
from tiny_model import write_tiny_llama

from fastpaged import _core
from fastpaged.config import EngineConfig

NUM_REQUESTS = 32


def base_config(model: Path, isa: str) -> EngineConfig:
    return EngineConfig(
        model=str(model), isa=isa, max_model_len=400, block_size=16, num_blocks=320, max_num_seqs=32,
        max_num_batched_tokens=512, num_threads=2,
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


@pytest.fixture(scope="module", params=_core.supported_isas())
def alone(request: pytest.FixtureRequest, model: Path, requests: list[Request]) -> tuple[str, list[Answer]]:
    isa: str = request.param
    return isa, run(Variant("alone", base_config(model, isa), alone=True), requests)


@pytest.mark.parametrize(
    "index", range(len(list(variants(base_config(Path("m"), "scalar"), (1, 7, 64), (1, 16, 128), (1, 2)))))
)
def test_answers_do_not_depend_on_how_requests_are_run(
    index: int, alone: tuple[str, list[Answer]], model: Path, requests: list[Request]
) -> None:
    isa, expected = alone
    variant = list(variants(base_config(model, isa), (1, 7, 64), (1, 16, 128), (1, 2)))[index]
    difference = first_difference(expected, run(variant, requests))
    assert difference is None, f"{isa}, {variant.name}: {difference}"


def test_a_pool_too_small_for_all_changes_no_answer(
    alone: tuple[str, list[Answer]], model: Path, requests: list[Request]
) -> None:
    isa, expected = alone
    config = EngineConfig(
        model=str(model), isa=isa, max_model_len=400, block_size=4, num_blocks=90, max_num_seqs=32,
        max_num_batched_tokens=64, num_threads=2,
    )  # fmt: skip
    difference = first_difference(expected, run(Variant("tiny pool", config, shuffle=9, poison=True), requests))
    assert difference is None, f"{isa}: {difference}"


def test_seeded_requests_differ_by_seed_and_repeat_by_seed(model: Path) -> None:
    """The matrix would also hold if nothing were ever drawn: it is."""
    from fastpaged.sampling_params import SamplingParams

    def ask(seed: int) -> Request:
        return Request((5, 6, 7), SamplingParams(temperature=1.0, seed=seed, max_tokens=12, ignore_eos=True))

    config = base_config(model, _core.default_isa())
    first, second, again = run(Variant("seeds", config), [ask(1), ask(2), ask(1)])
    assert first == again
    assert first != second
