"""Start-up: what a user waits for before the first token, what memory that takes, and what the installation weighs.

    python bench/startup.py --model MODEL [--runs 9] [--no-chat] [--kv-mib 64] [--wheel dist/fastpaged-….whl]
        [--output startup.json]

Each time is the median of whole processes of this interpreter's environment, after one run that is not counted. The
first token is timed from outside: from before the process is started to the first byte of text on its stdout. It is
timed where packed weights of an earlier start are mapped, and where they are not kept; in both the files are in the
page cache. They are kept in a folder of this run alone, removed at its end.
Peak memory is the largest proportional set size (PSS) that /proc showed of any of the runs, looked at every 20 ms; it
is held against the model's weights in the dtype that is computed with and a KV pool of --kv-mib (64), as which the
engine is told to make it. A short answer touches little of it, so the ratio to the weights alone is printed as well.
Prints a table, and one JSON object as the last line (or to --output).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pss import PeakPss

from fastpaged.cli.bench_machine import bytes_of_model

QUESTION = "What is the capital of France?"
PROMPT = "The capital of France is"
_MAX_MODEL_LEN = 1024  # the KV pool must hold so many tokens


def seconds_of(command: list[str]) -> float:
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - start


class FirstToken:
    """Times processes that write an answer to stdout, and notes the most memory that one of them took."""

    def __init__(self) -> None:
        self.peak_bytes = 0

    def __call__(self, command: list[str]) -> float:
        """Seconds from the start of the process to its first byte on stdout."""
        start = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0) as process:
            assert process.stdout is not None
            with PeakPss(process.pid) as peak:
                first = process.stdout.read(1)
                elapsed = time.monotonic() - start
                process.stdout.read()
                process.wait()
        if process.returncode != 0 or not first:
            raise SystemExit(f"{' '.join(command)} failed with {process.returncode}")
        self.peak_bytes = max(self.peak_bytes, peak.num_bytes)
        return elapsed


def time_line(command: list[str]) -> str:
    """The command's own account, its last line on stderr."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stderr.strip().splitlines()[-1]


def median(measure: Callable[[list[str]], float], command: list[str], runs: int) -> float:
    measure(command)
    return statistics.median(measure(command) for _ in range(runs))


def megabytes(path: Path) -> float:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() and not file.is_symlink()]
    return sum(file.stat().st_size for file in files) / 1e6


def first_tokens(generate: list[str], weights: int, kv_bytes: int, runs: int) -> dict[str, float | str]:
    """With packed weights on disk and without."""
    results: dict[str, float | str] = {}
    for name, options in (("uncached", ["--no-packed-cache"]), ("cached", [])):
        measure = FirstToken()
        results[f"first_token_{name}_s"] = median(measure, [*generate, *options], runs)
        results[f"peak_{name}_mb"] = measure.peak_bytes / 1e6
        results[f"peak_{name}_ratio"] = measure.peak_bytes / (weights + kv_bytes)
        results[f"peak_{name}_over_weights"] = measure.peak_bytes / weights
        results[f"time_line_{name}"] = time_line([*generate, *options])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--chat", action=argparse.BooleanOptionalAction, default=True, help="ask as a chat does")
    parser.add_argument("--kv-mib", type=int, default=64, help="KV pool (default: %(default)s)")
    parser.add_argument("--wheel", type=Path, help="a built wheel, to weigh it")
    parser.add_argument("--output", type=Path, help="where the JSON goes instead of stdout")
    args = parser.parse_args()

    command = [sys.executable, "-m", "fastpaged"]
    generate = [
        *command,
        "generate",
        "--model",
        args.model,
        *(["--chat", QUESTION] if args.chat else ["--prompt", PROMPT]),
    ]
    generate += ["--temperature", "0", "--max-tokens", "16"]
    generate += ["--kv-cache-memory-bytes", str(args.kv_mib << 20), "--max-model-len", str(_MAX_MODEL_LEN)]
    python = median(seconds_of, [sys.executable, "-c", "pass"], args.runs)
    results: dict[str, float | str] = {
        "runs": args.runs,
        "python_s": python,
        "import_s": median(seconds_of, [sys.executable, "-c", "import fastpaged"], args.runs) - python,
        "version_s": median(seconds_of, [*command, "--version"], args.runs),
        "venv_mb": megabytes(Path(sys.prefix)),
    }
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FASTPAGED_CACHE"] = folder
        results |= first_tokens(generate, bytes_of_model(args.model), args.kv_mib << 20, args.runs)
    if args.wheel is not None:
        results["wheel_mb"] = megabytes(args.wheel)
    report(results, args.output)


def report(results: dict[str, float | str], output: Path | None) -> None:
    rows = {
        "python itself": ("python_s", "s", None),
        "import fastpaged, beside it": ("import_s", "s", 0.3),
        "fastpaged --version": ("version_s", "s", 0.3),
        "first token, weights packed": ("first_token_uncached_s", "s", 2.0),
        "first token, weights mapped": ("first_token_cached_s", "s", 2.0),
        "peak PSS, weights packed": ("peak_uncached_mb", "MB", None),
        "  over weights + KV pool": ("peak_uncached_ratio", "", 1.3),
        "  over weights alone": ("peak_uncached_over_weights", "", None),
        "peak PSS, weights mapped": ("peak_cached_mb", "MB", None),
        "  over weights + KV pool ": ("peak_cached_ratio", "", 1.3),
        "  over weights alone ": ("peak_cached_over_weights", "", None),
        "virtual environment": ("venv_mb", "MB", 250.0),
        "wheel": ("wheel_mb", "MB", 10.0),
    }
    for name, (key, unit, limit) in rows.items():
        if key in results:
            promise = "" if limit is None else f"   (promised: < {limit:g} {unit})"
            print(f"{name:<30} {results[key]:>8.3f} {unit}{promise}")
    for name in ("uncached", "cached"):
        print(f"{name}: {results[f'time_line_{name}']}")
    text = json.dumps(results)
    if output is None:
        print(text)
    else:
        output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
