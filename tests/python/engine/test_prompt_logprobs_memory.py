"""What the logprobs of a long prompt cost in memory: rows of logits for a chunk of it, never for all of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_model import tiny_config, write_json, write_safetensors, write_tiny_llama

from fastpaged.config.keys import Keys
from fastpaged.models.llama import Llama

VOCAB_SIZE = 49_152
NUM_TOKENS = 4_000
ALL_LOGITS_MB = NUM_TOKENS * VOCAB_SIZE * 4 / 1e6  # float32

# Prints the highest resident set of its own process, in MB, and how many entries came.
SCRIPT = """
import sys
from fastpaged import SamplingParams
from fastpaged.config import EngineConfig
from fastpaged.engine.llm_engine import LLMEngine

model, k = sys.argv[1], None if sys.argv[2] == "None" else int(sys.argv[2])
engine = LLMEngine(EngineConfig(model=model, num_blocks=300, num_threads=1))
params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, prompt_logprobs=k, detokenize=False)
engine.add_request("r", [i * 7919 % 49152 for i in range(4000)], params)
while engine.has_unfinished_requests():
    outputs = engine.step()
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print(peak * 1024 / 1e6, len(outputs[-1].prompt_logprobs or ()))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with many tokens."""
    path = write_tiny_llama(tmp_path_factory.mktemp("wide"))
    config = tiny_config(tied=True) | {"vocab_size": VOCAB_SIZE, "max_position_embeddings": NUM_TOKENS + 10}
    write_json(path / "config.json", config)
    random = np.random.default_rng(1)
    shapes = Llama.weight_shapes(Llama.config_from_hf(Keys("config.json", config)))
    weights = {name: random.standard_normal(shape, np.float32) / np.float32(8) for name, shape in shapes.items()}
    write_safetensors(path / "model.safetensors", weights)
    return path


def peak(model: Path, k: int | None) -> float:
    run = subprocess.run([sys.executable, "-c", SCRIPT, str(model), str(k)], capture_output=True, text=True, check=True)
    megabytes, num_entries = run.stdout.split()
    assert int(num_entries) == (0 if k is None else NUM_TOKENS)
    return float(megabytes)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_prompt_of_4000_tokens_and_a_vocabulary_of_49152_adds_less_than_200_mb(model: Path) -> None:
    added = peak(model, 5) - peak(model, None)
    assert added < 200 < ALL_LOGITS_MB
