"""Start-up: what a user waits for before the first token, and what the installation weighs.

    python bench/startup.py --model MODEL.gguf [--runs 9] [--wheel dist/fastpaged-….whl] [--output startup.json]

Each time is the median of whole processes of this interpreter's environment, after one run that is not counted. The
first token is timed from outside: from before the process is started to the first byte of text on its stdout.
Prints a table, and one JSON object as the last line (or to --output).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PROMPT = "What is the capital of France?"


def seconds_of(command: list[str]) -> float:
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - start


def seconds_to_first_byte(command: list[str]) -> float:
    start = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        elapsed = time.monotonic() - start
        process.stdout.read()
    if process.returncode != 0 or not first.strip():
        raise SystemExit(f"{' '.join(command)} failed with {process.returncode}")
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--wheel", type=Path, help="a built wheel, to weigh it")
    parser.add_argument("--output", type=Path, help="where the JSON goes instead of stdout")
    args = parser.parse_args()

    command = [sys.executable, "-m", "fastpaged"]
    generate = [
        *command,
        "generate",
        "--model",
        args.model,
        "--chat",
        PROMPT,
        "--temperature",
        "0",
        "--max-tokens",
        "16",
    ]
    python = median(seconds_of, [sys.executable, "-c", "pass"], args.runs)
    results: dict[str, float | str] = {
        "runs": args.runs,
        "python_s": python,
        "import_s": median(seconds_of, [sys.executable, "-c", "import fastpaged"], args.runs) - python,
        "version_s": median(seconds_of, [*command, "--version"], args.runs),
        "first_token_s": median(seconds_to_first_byte, generate, args.runs),
        "time_line": time_line(generate),
        "venv_mb": megabytes(Path(sys.prefix)),
    }
    if args.wheel is not None:
        results["wheel_mb"] = megabytes(args.wheel)
    report(results, args.output)


def report(results: dict[str, float | str], output: Path | None) -> None:
    rows = {
        "python itself": ("python_s", "s", None),
        "import fastpaged, beside it": ("import_s", "s", 0.3),
        "fastpaged --version": ("version_s", "s", 0.3),
        "cold process to first token": ("first_token_s", "s", 2.0),
        "virtual environment": ("venv_mb", "MB", 250.0),
        "wheel": ("wheel_mb", "MB", 10.0),
    }
    for name, (key, unit, limit) in rows.items():
        if key in results:
            promise = "" if limit is None else f"   (promised: < {limit:g} {unit})"
            print(f"{name:<30} {results[key]:>8.3f} {unit}{promise}")
    print(results["time_line"])
    text = json.dumps(results)
    if output is None:
        print(text)
    else:
        output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
