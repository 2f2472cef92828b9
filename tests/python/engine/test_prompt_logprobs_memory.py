"""What the logprobs of a long prompt cost in memory: rows of logits for a chunk of it, never for all of it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tiny_model import tiny_config, write_json, write_safetensors, write_tiny_llama

from fastpaged.config.keys import Keys
from fastpaged.models.llama import Llama

# Prints the highest resident set of its own process, in MB, and how many entries came.
SCRIPT = """
import sys
from fastpaged import SamplingParams
from fastpaged.config import EngineConfig
from fastpaged.engine.llm_engine import LLMEngine

model, vocab_size, num_tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
k = None if sys.argv[4] == "None" else int(sys.argv[4])
engine = LLMEngine(EngineConfig(model=model, num_blocks=300, num_threads=1))
params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, prompt_logprobs=k, detokenize=False)
engine.add_request("r", [i * 7919 % vocab_size for i in range(num_tokens)], params)
while engine.has_unfinished_requests():
    outputs = engine.step()
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print(peak * 1024 / 1e6, len(outputs[-1].prompt_logprobs or ()))
"""


@dataclass(frozen=True)
class Wide:
    """The tiny Llama with many tokens, and a prompt for it."""

    model: Path
    vocab_size: int
    num_tokens: int

    @property
    def all_logits_mb(self) -> float:
        return self.num_tokens * self.vocab_size * 4 / 1e6  # float32

    def peak(self, k: int | None) -> float:
        arguments = map(str, (self.model, self.vocab_size, self.num_tokens, k))
        run = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True)
        megabytes, num_entries = run.stdout.split()
        assert int(num_entries) == (0 if k is None else self.num_tokens)
        return float(megabytes)


# The engine's max_num_seqs, 256, is more than the rows of a chunk: at 262,144 tokens 256 rows are 268 MB.
@pytest.fixture(scope="module", params=[(49_152, 4_000), (262_144, 600)], ids=["49152", "262144"])
def wide(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Wide:
    vocab_size, num_tokens = request.param
    path = write_tiny_llama(tmp_path_factory.mktemp("wide"))
    config = tiny_config(tied=True) | {"vocab_size": vocab_size, "max_position_embeddings": num_tokens + 10}
    write_json(path / "config.json", config)
    random = np.random.default_rng(1)
    shapes = Llama.weight_shapes(Llama.config_from_hf(Keys("config.json", config)))
    weights = {name: random.standard_normal(shape, np.float32) / np.float32(8) for name, shape in shapes.items()}
    write_safetensors(path / "model.safetensors", weights)
    return Wide(path, vocab_size, num_tokens)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_logprobs_of_a_long_prompt_add_less_than_200_mb(wide: Wide) -> None:
    added = wide.peak(5) - wide.peak(None)
    assert added < 200 < wide.all_logits_mb
