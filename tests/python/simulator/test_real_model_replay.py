"""A real model under pressure, recorded: every decision of its scheduler comes out again without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from simulator.met import met
from simulator.recorded import FakeClock, drive

from fastpaged.config import EngineConfig
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.simulator.replay import replay

WAYS: list[tuple[dict[str, Any], str]] = [
    ({"preemption_mode": "swap"}, "blocks swapped in"),
    ({"preemption_mode": "recompute"}, "tokens recomputed"),
    ({"preemption_mode": "auto", "async_scheduling": True, "kv_cache_dtype": "int8"}, "preemptions"),
]


@pytest.mark.parametrize(("settings", "way"), WAYS)
def test_a_real_model_s_run_under_pressure_comes_out_again(
    tmp_path: Path, tiny_llama: Path, settings: dict[str, Any], way: str
) -> None:
    path = tmp_path / "run"
    engine = LLMEngine(
        EngineConfig(
            model=str(tiny_llama),
            isa="scalar",
            num_threads=1,
            block_size=4,
            num_blocks=16,
            max_num_seqs=8,
            max_model_len=64,
            max_num_batched_tokens=32,
            swap_space=24 * 4 * 256 / 2**30,
            scheduling_policy="priority",
            record=str(path),
            **settings,
        )
    )
    engine.clock.source = FakeClock(500)
    drive(engine, seed=3, num_requests=50)
    engine.close()
    result = replay(str(path))
    assert result.differences == ()
    assert not result.is_cut
    found = met(path, result)
    assert all(found[what] > 0 for what in (way, "preemptions", "prefix hits", "copies on write")), found
    assert all(found[what] > 0 for what in ("forks", "beams", "aborts", "priorities", "ends by time")), found
