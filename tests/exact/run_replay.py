"""A recorded run of a real model, replayed with no model: every decision of its scheduler must come out again.

    python tests/exact/run_replay.py --model SmolLM2-135M-Instruct.Q4_1.gguf [--requests 60 --blocks 36 --seed 5]

The run is one under pressure: hardly more blocks than the longest request has need of, with priorities, deadlines,
times to be let in by, aborts, salts, stop strings, several samples and beams, on a real clock; half of the prompts
begin alike. It is recorded and replayed for each way to preempt, and with steps planned ahead. Exits with 1 if a
decision differs anywhere, and with 2 if a run had no preemption, prefix hit, fork, beam, abort or end by time, or the
runs together no block swapped and no token recomputed: then the machine is too fast or too slow for this load, which
more of --requests mends.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from simulator.met import met

from fastpaged.config import EngineConfig
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.sampling_params import SamplingParams
from fastpaged.simulator.replay import replay

SYSTEM = "You are a helpful assistant who answers shortly and truthfully. " * 4
QUESTIONS = (
    "Tell me about the sea.",
    "List five animals.",
    "Why is the sky blue?",
    "Write a poem about rain.",
    "What is 12 times 13?",
    "Explain photosynthesis.",
)
# What each run must have met.
MET = ("preemptions", "prefix hits", "forks", "beams", "aborts", "priorities", "ends by time")
RUNS: tuple[dict[str, Any], ...] = (
    {"preemption_mode": "swap"},
    {"preemption_mode": "recompute"},
    {"preemption_mode": "auto", "async_scheduling": True},
)


class Load:
    """Requests drawn from a seed, for one engine."""

    def __init__(self, engine: LLMEngine, num_requests: int, seed: int) -> None:
        self._engine = engine
        self._num_requests = num_requests
        self._dice = random.Random(seed)
        self._num_added = 0
        self._here: set[str] = set()

    def run(self) -> None:
        engine, dice = self._engine, self._dice
        while self._num_added < self._num_requests or engine.has_unfinished_requests():
            if self._num_added < self._num_requests and dice.random() < 0.4:
                self._add(str(self._num_added))
            if self._here and dice.random() < 0.03:
                request_id = dice.choice(sorted(self._here))
                engine.abort_request(request_id)
                self._here.discard(request_id)
            self._here -= {output.request_id for output in engine.step() if output.finished}

    def _add(self, request_id: str) -> None:
        dice = self._dice
        prompt = {"prompt": (SYSTEM if dice.random() < 0.5 else "") + dice.choice(QUESTIONS)}
        if dice.random() < 0.2:
            prompt["cache_salt"] = "a tenant"
        terms: dict[str, Any] = {"priority": dice.choice((-1, 0, 0, 0, 1))}
        if dice.random() < 0.2:
            terms["deadline"] = dice.uniform(0.01, 1.0)
        if dice.random() < 0.2:
            terms["queue_timeout"] = dice.uniform(0.005, 0.5)
        self._engine.add_request(request_id, prompt, self._params(), **terms)
        self._num_added += 1
        self._here.add(request_id)

    def _params(self) -> SamplingParams:
        dice = self._dice
        seed = dice.randrange(1000)
        match dice.choices(("plain", "samples", "beams", "stops", "scored"), (8, 5, 3, 2, 1))[0]:
            case "samples":
                return SamplingParams(n=3, temperature=0.9, seed=seed, max_tokens=dice.randint(8, 60), ignore_eos=True)
            case "beams":
                length = dice.randint(5, 25)
                return SamplingParams(use_beam_search=True, n=2, best_of=3, temperature=0, max_tokens=length)
            case "stops":
                return SamplingParams(temperature=0.8, seed=seed, max_tokens=60, stop=["e t", ". "], ignore_eos=True)
            case "scored":
                return SamplingParams(temperature=0, max_tokens=10, prompt_logprobs=1)
        return SamplingParams(temperature=0.8, seed=seed, max_tokens=dice.randint(8, 90), ignore_eos=True)


def check(args: argparse.Namespace, path: Path, settings: dict[str, Any]) -> tuple[bool, Counter[str]]:
    """Prints a line, and the first differences. Whether there is none, and what was met."""
    engine = LLMEngine(
        EngineConfig(
            model=args.model,
            record=str(path),
            num_blocks=args.blocks,
            swap_space=0.05,
            max_model_len=512,
            max_num_batched_tokens=256,
            scheduling_policy="priority",
            num_threads=1,
            packed_cache=False,
            **settings,
        )
    )
    Load(engine, args.requests, args.seed).run()
    engine.scheduler.check_invariants()
    engine.close()
    result = replay(str(path))
    found = met(path, result)
    name = ", ".join(f"{name} {value}" for name, value in settings.items())
    print(
        f"{name}: {result.num_steps} steps, {result.num_decisions} decisions, {result.num_differences} of them "
        f"different; {', '.join(f'{count} {what}' for what, count in found.items())}",
        flush=True,
    )
    for difference in result.differences:
        print(difference)
    return result.num_differences == 0 and not result.is_cut, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a .gguf file or a folder")
    parser.add_argument("--requests", type=int, default=60, metavar="N")
    parser.add_argument("--blocks", type=int, default=36, metavar="N")
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    same = True
    missing: list[str] = []
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for settings in RUNS:
            good, found = check(args, Path(folder) / "run", settings)
            same = same and good
            missing += [f"{what} with {settings['preemption_mode']}" for what in MET if not found[what]]
            total += found
    missing += [what for what in ("blocks swapped in", "tokens recomputed", "copies on write") if not total[what]]
    if missing:
        print(f"never met: {', '.join(missing)}")
    print("every decision came out again" if same else "DIFFERENCES FOUND")
    return 1 if not same else 2 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
