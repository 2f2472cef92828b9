"""The limits that bench/peers.py holds engines against, by counting."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from peers_limits import MachineRates, ModelWork, better_figures, changes, machine_rates
from tiny_model import tiny_config, tiny_weights
from workloads import Request


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_s_work_is_counted_from_its_files(tmp_path: Path, tied: bool) -> None:
    import torch
    from safetensors.torch import save_file

    weights = tiny_weights(tied=tied)
    save_file({name: torch.from_numpy(w).bfloat16() for name, w in weights.items()}, tmp_path / "model.safetensors")
    config = tiny_config(tied=tied)
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    work = ModelWork.of(tmp_path)
    head = weights["model.embed_tokens.weight"].size
    body = sum(w.size for name, w in weights.items() if ".layers." in name and w.ndim == 2)
    assert (work.head_weights, work.body_weights) == (head, body)
    norms = sum(w.size for w in weights.values() if w.ndim == 1)
    assert work.weight_bytes == 2 * (head + body + norms)
    head_dim = 64 // 4
    assert work.kv_bytes == 2 * 2 * 2 * 2 * head_dim  # bytes, K and V, layers, KV heads
    assert work.attention_flops == 2 * 2 * 2 * 4 * head_dim  # flops, QK and PV, layers, heads


WORK = ModelWork(weight_bytes=1000, body_weights=300, head_weights=200, kv_bytes=10, attention_flops=40)


def test_decoding_is_held_against_the_bytes_of_each_step() -> None:
    request = Request(prompt=[1] * 30, out=20)
    rates = MachineRates(read_rate=1e6, flop_rate=1e12)
    mean_bytes = sum(1000 + 10 * context for context in range(30, 51)) / 21
    assert WORK.decode_limit(request, rates) == pytest.approx(1e6 / mean_bytes)


def test_prefill_is_held_against_its_flops_or_else_the_weights() -> None:
    request = Request(prompt=[1] * 50, out=1)
    flops = 2 * (300 * 50 + 200) + sum(40 * (position + 1) for position in range(50))
    assert WORK.prefill_limit(request, MachineRates(1e12, 1e6)) == pytest.approx(50 / (flops / 1e6))
    assert math.isclose(WORK.prefill_limit(request, MachineRates(1e3, 1e12)), 50 / (1000 / 1e3))


def test_rates_are_those_of_the_threads_and_of_the_best_instruction_set() -> None:
    rows = [
        {"what": "read", "from": "memory", "threads": 1, "rate": 5.0},
        {"what": "read", "from": "memory", "threads": 2, "rate": 8.0},
        {"what": "read", "from": "own cache", "threads": 2, "rate": 99.0},
        {"what": "multiply", "from": "own cache", "dtype": "bfloat16", "isa": "amx", "threads": 2, "rate": 70.0},
        {"what": "multiply", "from": "own cache", "dtype": "bfloat16", "isa": "avx512", "threads": 2, "rate": 40.0},
        {"what": "multiply", "from": "registers", "dtype": "bfloat16", "isa": "amx", "threads": 2, "rate": 90.0},
        {"what": "multiply", "from": "own cache", "dtype": "float32", "isa": "avx512", "threads": 2, "rate": 95.0},
    ]
    assert machine_rates(rows, 2) == MachineRates(8.0, 70.0)
    better = better_figures({"rates": rows}, {"rates": [{**row, "rate": 60.0} for row in rows]})
    assert machine_rates(better["rates"], 2) == MachineRates(60.0, 70.0)


def test_a_machine_that_changed_by_more_than_a_tenth_was_not_quiet() -> None:
    before = MachineRates(20e9, 500e9)
    assert changes(before, MachineRates(21e9, 460e9)) == []
    assert changes(before, MachineRates(17e9, 500e9)) == [
        "This machine was not quiet: memory 20.0 GB/s before, 17.0 after."
    ]
    assert len(changes(before, MachineRates(30e9, 400e9))) == 2
