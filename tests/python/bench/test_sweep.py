"""The sweep's cells: decode steps that are what they say, on an engine that is left as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sweep
from sweep_cells import Bench, Cell


@pytest.fixture
def bench(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("FASTPAGED_ISA", "scalar")
    bench = Bench(str(tiny_llama), threads=1, max_num_seqs=4, kv_bytes=1 << 20)
    yield bench
    bench.close()


def test_a_cell_decodes_all_its_sequences_at_its_context_and_computes_no_prompt(bench: Bench) -> None:
    worker: Any = bench.engine.worker
    seen: list[tuple[int, list[int]]] = []
    graph = worker.graph
    run = graph.run

    def noted(batch: Any) -> None:
        seen.append((len(batch.token_ids), [int(length) for length in batch.context_lens]))
        run(batch)

    graph.run = noted
    cell = bench.decode(3, 200, 0.0)
    assert {count for count, _ in seen} == {3}
    assert all(200 - 64 < length <= 200 for _, lengths in seen for length in lengths)
    assert cell.num_steps == len(seen) - 2 >= 5
    assert cell.step_ms >= cell.forward_ms > cell.attention_ms > 0.0
    assert worker.graph is graph
    assert not bench.engine.has_unfinished_requests()
    assert bench.engine.scheduler.num_free_blocks == bench.engine.scheduler.num_blocks


def test_cells_that_the_pool_cannot_hold_do_not_fit(bench: Bench) -> None:
    assert bench.fits(4, 512)
    assert not bench.fits(1, 513)  # the model's context
    most = bench.room() // 512
    assert bench.fits(most, 512) and not bench.fits(most + 1, 512)


def test_the_pool_is_noise_and_finite(bench: Bench) -> None:
    values = (np.asarray(bench.engine.worker.kv_memory.array).reshape(-1).view(np.uint16).astype(np.uint32) << 16).view(
        np.float32
    )
    assert np.isfinite(values).all()
    assert values.std() == pytest.approx(1.0, rel=0.05)


def cell(threads: int, sequences: int, context: int, step_ms: float) -> Cell:
    rest = 0.05 * step_ms
    return Cell(threads, sequences, context, 5, step_ms, 0.9 * step_ms, context / 100, rest, rest, step_ms * threads)


def test_findings_fit_overhead_by_sequences_and_attention_by_context() -> None:
    cells = [cell(1, n, context, 10.0 + n) for n in (1, 2, 4) for context in (100, 200, 400)]
    found = sweep.findings(cells, {1: [10.0, 12.0, 9.0], 2: [20.0, 18.0, 18.0]})
    assert found["w2_speedup"] == 2.0
    assert [(fit["context"], fit["fixed"], fit["slope"]) for fit in found["overhead"]] == [
        (context, pytest.approx(1.0), pytest.approx(0.1)) for context in (100, 200, 400)
    ]
    assert [(fit["sequences"], fit["slope"], fit["r2"]) for fit in found["attention"]] == [
        (sequences, pytest.approx(0.01), pytest.approx(1.0)) for sequences in (1, 2, 4)
    ]
    text = sweep.tables(cells) + sweep.findings_text(found)
    assert "| 4 | 286 (12.6 + 1.40) |" in text and "2.00 x" in text
