"""What the machine allows: the bytes and flops that work takes at the least, over rates measured in the same run."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads import Request

from fastpaged.cli.machine_limits import MOST_CHANGE

_BF16_BYTES = 2


@dataclass(frozen=True)
class MachineRates:
    """Per second, all threads together: bytes read from memory, and bfloat16 flops with weights from L2."""

    read_rate: float
    flop_rate: float


def measure_machine(model: Path, num_threads: int, output: Path) -> dict[str, Any]:
    """What `fastpaged bench machine` writes to `output`, reading as much memory as the model's weights are. SystemExit
    where it fails.
    """
    command = [sys.executable, "-m", "fastpaged", "bench", "machine", "--model", str(model)]
    command += ["--threads", str(num_threads), "--json", str(output)]
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed")
    figures: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return figures


def better_figures(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Of two measurements of one machine: the larger of each rate, for whoever disturbs can only lower it."""
    pairs = zip(before["rates"], after["rates"], strict=True)
    return {**before, "rates": [{**one, "rate": max(one["rate"], other["rate"])} for one, other in pairs]}


def changes(before: MachineRates, after: MachineRates) -> list[str]:
    """A warning for each rate that a quiet machine would not have changed so much."""
    found = []
    for title, unit, one, other in (
        ("memory", "GB/s", before.read_rate, after.read_rate),
        ("matrix work", "GFLOP/s", before.flop_rate, after.flop_rate),
    ):
        if abs(other - one) > MOST_CHANGE * max(one, other):
            rates = f"{one / 1e9:.1f} {unit} before, {other / 1e9:.1f} after"
            found.append(f"This machine was not quiet: {title} {rates}.")
    return found


def machine_rates(rates: Sequence[Mapping[str, Any]], num_threads: int) -> MachineRates:
    """Of its JSON: the best instruction set's, at this number of threads."""
    of_threads = [row for row in rates if row["threads"] == num_threads]
    reads = [row["rate"] for row in of_threads if row["what"] == "read" and row["from"] == "memory"]
    flops = [
        row["rate"]
        for row in of_threads
        if row["what"] == "multiply" and row["from"] == "own cache" and row["dtype"] == "bfloat16"
    ]
    return MachineRates(max(reads), max(flops))


@dataclass(frozen=True)
class ModelWork:
    """What computing a token takes at the least, in bfloat16.

    weight_bytes: every weight that a decode step uses; of an embedding that is no head, nothing: it is one row.
    body_weights, head_weights: numbers in matrices that each token, and each sampled token, is multiplied with.
    kv_bytes: of one token. attention_flops: of one query and one key, over all layers and heads.
    """

    weight_bytes: int
    body_weights: int
    head_weights: int
    kv_bytes: int
    attention_flops: int

    @staticmethod
    def of(model: Path) -> ModelWork:
        """From config.json and the headers of its safetensors files: for models whose layers are all alike."""
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        config = config.get("text_config", config)
        shapes = _shapes(model)
        tied = "lm_head.weight" not in shapes
        head = next(shape for name, shape in shapes.items() if name.endswith("embed_tokens.weight"))
        used = [shape for name, shape in shapes.items() if tied or not name.endswith("embed_tokens.weight")]
        num_heads = config["num_attention_heads"]
        head_dim = config.get("head_dim") or config["hidden_size"] // num_heads
        num_layers = config["num_hidden_layers"]
        num_kv_heads = config.get("num_key_value_heads", num_heads)
        matrices = sum(math.prod(shape) for shape in used if len(shape) == 2)
        return ModelWork(
            weight_bytes=_BF16_BYTES * sum(math.prod(shape) for shape in used),
            body_weights=matrices - math.prod(head),
            head_weights=math.prod(head),
            kv_bytes=_BF16_BYTES * 2 * num_layers * num_kv_heads * head_dim,
            attention_flops=4 * num_layers * num_heads * head_dim,
        )

    def decode_limit(self, request: Request, rates: MachineRates) -> float:
        """Tokens per second of one request that decodes alone, over the contexts that it goes through."""
        context = len(request["prompt"]) + request["out"] / 2
        return rates.read_rate / (self.weight_bytes + self.kv_bytes * context)

    def prefill_limit(self, request: Request, rates: MachineRates) -> float:
        """Prompt tokens per second of one request."""
        count = len(request["prompt"])
        pairs = count * (count + 1) / 2  # a query and a key that is not after it
        flops = 2 * (self.body_weights * count + self.head_weights) + self.attention_flops * pairs
        return count / max(flops / rates.flop_rate, self.weight_bytes / rates.read_rate)


def _shapes(model: Path) -> dict[str, list[int]]:
    """Of every tensor, by name. A safetensors file begins with the length of a JSON header, and that header."""
    shapes: dict[str, list[int]] = {}
    for path in sorted(model.glob("*.safetensors")):
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        shapes.update({name: entry["shape"] for name, entry in header.items() if name != "__metadata__"})
    if not shapes:
        raise SystemExit(f"{model} must hold .safetensors files: every peer reads those")
    return shapes


def workload_limit(model: Path, workload: Path, machine: Path, num_threads: int, max_num_seqs: int) -> float:
    """Seconds that a machine with the rates of this file needs at the least for the steps in which fastpaged runs a
    workload, as `fastpaged bench throughput --profile` counts them. SystemExit where it fails.
    """
    output = machine.with_name("profile.json")
    command = [sys.executable, "-m", "fastpaged", "bench", "throughput", "--model", str(model), "--profile"]
    command += ["--workload", str(workload), "--num-threads", str(num_threads), "--max-num-seqs", str(max_num_seqs)]
    command += ["--machine", str(machine), "--json", str(output)]
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed")
    figures = json.loads(output.read_text(encoding="utf-8"))
    return float(figures["profile"]["limit_seconds"])
