"""How far `fastpaged replay`'s predictions are from what a real engine does with other settings.

    python bench/prediction.py --model MODEL [--requests 24] [--blocks N] [--repeat 5] [--output DIR]

Requests arrive over time, half of them with a beginning in common, with lengths like Alpaca's. A run with a pool of N
blocks is recorded; from that, one with half the pool is predicted, in which requests have to be preempted. Then that
one is run for real, --repeat times, each beside its prediction. The recording is replayed, too, and must not differ.

Time is the CPU time of the process, on one thread, so that company on the machine counts for little; where nothing is
to be done it is advanced to the next arrival. Prints a table; writes DIR/prediction.json. Exit status 1 if a decision
differs, nobody was preempted, or the median run is more than 15 % off the prediction.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workloads import lognormal_lengths

from fastpaged.config import EngineConfig
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.sampling_params import SamplingParams
from fastpaged.simulator.figures import Figures
from fastpaged.simulator.history import history_of
from fastpaged.simulator.prediction import Changes, predict
from fastpaged.simulator.recording import read_recording
from fastpaged.simulator.replay import replay_recording

_LIMIT = 0.15
_SHARED = 32  # tokens
_MAX_MODEL_LEN = 512
_GAP = 0.05  # mean seconds from one arrival to the next


@dataclass(frozen=True)
class Asked:
    """time: of its arrival, in nanoseconds from the beginning."""

    time: int
    prompt: list[int]
    num_out: int


class CpuClock:
    """Nanoseconds that this process has computed, and those that it has skipped."""

    def __init__(self, begin: int) -> None:
        self._ahead = begin - time.process_time_ns()

    def __call__(self) -> int:  # noqa: D102  # see above
        return time.process_time_ns() + self._ahead

    def skip_to(self, now: int) -> None:
        """Unless it is later already."""
        self._ahead += max(0, now - self())


def requests(count: int, seed: int = 1) -> list[Asked]:
    dice = random.Random(seed)
    prompts = lognormal_lengths(count, 40, 0.7, 200)
    outputs = lognormal_lengths(count, 60, 0.6, 200)
    dice.shuffle(prompts)
    dice.shuffle(outputs)
    shared = [dice.randrange(1000, 20000) for _ in range(_SHARED)]
    now = 0.0
    asked = []
    for index, (num_in, num_out) in enumerate(zip(prompts, outputs, strict=True)):
        own = [dice.randrange(1000, 20000) for _ in range(num_in)]
        asked.append(Asked(round(now * 1e9), (shared if index % 2 else []) + own, num_out))
        now += dice.expovariate(1 / _GAP)
    return asked


def run(model: str, blocks: int, asked: Sequence[Asked], record: str | None) -> float:
    """Seconds from the first arrival to the last token."""
    config = EngineConfig(
        model=model,
        num_blocks=blocks,
        max_model_len=_MAX_MODEL_LEN,
        num_threads=1,
        swap_space=0.25,
        record=record,
        packed_cache=False,
    )
    engine = LLMEngine(config)
    begin = engine.now_ns()
    clock = CpuClock(begin)
    engine.clock.source = clock  # beside the clock of the recording's header, which it goes on from
    coming = list(enumerate(asked))
    while coming or engine.has_unfinished_requests():
        if not engine.has_unfinished_requests():
            clock.skip_to(begin + coming[0][1].time)
        while coming and begin + coming[0][1].time <= clock():
            index, request = coming.pop(0)
            params = SamplingParams(temperature=0, max_tokens=request.num_out, ignore_eos=True, detokenize=False)
            engine.add_request(str(index), {"prompt_token_ids": request.prompt}, params, final_only=True)
        engine.step()
    elapsed = (clock() - begin) / 1e9
    engine.close()
    return elapsed


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    asked = requests(args.requests)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "recording")
        run(args.model, args.blocks, asked, path)
        size = os.path.getsize(path)
        recording = read_recording(path)
        checked = replay_recording(recording)
        history = history_of(recording)
        times = history.step_times()
        changes = Changes(blocks=args.blocks // 2)
        predicted = predict(recording.header, history, times, changes)
        runs: list[float] = []
        real: list[Figures] = []
        for _ in range(args.repeat):
            run(args.model, args.blocks // 2, asked, path)
            real.append(history_of(read_recording(path)).figures)
            runs.append(real[-1].makespan)
            print(f"run {len(runs)}: {runs[-1]:.3f} s, predicted {predicted.makespan:.3f} s", flush=True)
    error = predicted.makespan / statistics.median(runs) - 1
    num_tokens = sum(len(request.prompt) + request.num_out for request in asked)
    print(f"recorded: {args.blocks} blocks, {history.figures.makespan:.3f} s, {checked.num_steps} steps")
    print(f"{checked.num_decisions} decisions, {checked.num_differences} of them different in a replay")
    print(f"{size} bytes, {size / num_tokens:.2f} a token")
    print(f"fit: {times.residual:.1%} of the mean step, {times.total_error:+.1%} of their sum")
    print(f"{'':<20}{'predicted':>12}{'real runs':>24}")
    for name in ("num_steps", "num_preemptions", "num_tokens_recomputed", "num_bytes_swapped"):
        print(f"{name:<20}{getattr(predicted, name):>12}{min_max([getattr(figures, name) for figures in real]):>24}")
    print(f"median of {len(runs)} runs {statistics.median(runs):.3f} s: the prediction is {error:+.1%} off")
    args.output.mkdir(parents=True, exist_ok=True)
    figures = {
        "recorded": dataclasses.asdict(history.figures),
        "predicted": dataclasses.asdict(predicted),
        "real": [dataclasses.asdict(figures) for figures in real],
        "step_times": dataclasses.asdict(times),
        "error": error,
        "num_differences": checked.num_differences,
    }
    (args.output / "prediction.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    good = checked.num_differences == 0 and predicted.num_preemptions > 0 and abs(error) <= _LIMIT
    return 0 if good else 1


def min_max(counts: Sequence[int]) -> str:
    return f"{min(counts)} to {max(counts)}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Predictions of another pool beside real runs with it.")
    parser.add_argument("--model", required=True, help="a .gguf file or a folder")
    parser.add_argument("--requests", type=int, default=24, metavar="N")
    parser.add_argument("--blocks", type=int, default=72, metavar="N", help="of the recorded run")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="real runs")
    parser.add_argument("--output", type=Path, default=Path(), metavar="DIR")
    return parser


if __name__ == "__main__":
    sys.exit(main())
