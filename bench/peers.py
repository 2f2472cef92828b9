"""fastpaged beside other engines: the same token ids, greedy, bfloat16, the same threads, in turn.

    python bench/peers.py --model FOLDER [--workloads w1 w2 w3 w4] [--rounds 5] [--threads 2] [--output DIR]
        [--vllm-python VENV/bin/python] [--llama-server PATH --gguf FILE]
        [--openvino-python VENV/bin/python --openvino-model DIR] [--transformers [PYTHON]]

Each engine runs in a process of its own, behind its adapter (peer_adapters/), and is stopped while another has its
turn. In each round every engine replays the workload once, beginning with another one each time; ratios are of runs
of one round. Where requests share a prefix, rounds follow of two that come alone, one after the other: what the first
token takes cold and warm. The machine's rates are measured before and after. Prints a table for each workload as it is
done, and writes DIR/peers.json and DIR/peers.md. A peer that fails, or takes longer than --time-limit, is named with
the reason.

A workload is the name of one of bench/workloads.py, or a file like theirs.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from peer_process import Measured, PeerError, PeerProcess, PeerSpec
from peers_first_token import FirstTokens, measure_first_tokens, num_shared_tokens
from peers_limits import ModelWork, better_figures, changes, machine_rates, measure_machine, workload_limit
from peers_report import OURS, WorkloadResult, metric_of
from workloads import WORKLOADS, Request, vocab_size_of, write

_ADAPTERS = Path(__file__).with_name("peer_adapters")
_MAX_NUM_SEQS = 64


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder with safetensors files, in bfloat16")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), metavar="WORKLOAD")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--start-limit", type=float, default=900.0, metavar="SECONDS", help="for a peer to be ready")
    parser.add_argument("--time-limit", type=float, default=300.0, metavar="SECONDS", help="for one run of a peer")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results"))
    parser.add_argument("--vllm-python", metavar="PYTHON", help="of an environment with vllm for CPUs")
    parser.add_argument("--llama-server", metavar="PATH")
    parser.add_argument("--gguf", metavar="FILE", help="the model for llama.cpp, in bfloat16")
    parser.add_argument("--openvino-python", metavar="PYTHON", help="of an environment with openvino-genai")
    parser.add_argument("--openvino-model", metavar="DIR", help="the model as optimum-cli exports it")
    parser.add_argument("--transformers", nargs="?", const=sys.executable, metavar="PYTHON")
    args = parser.parse_args()
    for one, other in (("llama_server", "gguf"), ("openvino_python", "openvino_model")):
        if (getattr(args, one) is None) != (getattr(args, other) is None):
            parser.error(f"--{one.replace('_', '-')} and --{other.replace('_', '-')} need each other")
    if args.rounds < 1 or args.threads < 1:
        parser.error("--rounds and --threads must be at least 1")
    if not (args.model / "config.json").is_file() or not any(args.model.glob("*.safetensors")):
        parser.error(f"--model must be a folder with config.json and .safetensors files, got {args.model}")
    return args


def specs_of(args: argparse.Namespace) -> list[PeerSpec]:
    """fastpaged first."""
    common = ["--model", str(args.model), "--threads", str(args.threads)]

    def spec(name: str, python: str, script: str, *options: str) -> PeerSpec:
        return PeerSpec(name, [python, str(_ADAPTERS / script), *common, *options])

    specs = [spec(OURS, sys.executable, "fastpaged_adapter.py", "--max-num-seqs", str(_MAX_NUM_SEQS))]
    if args.vllm_python is not None:
        specs.append(spec("vLLM", args.vllm_python, "vllm_adapter.py"))
    if args.llama_server is not None:
        options = ["--server", args.llama_server, "--gguf", args.gguf]
        specs.append(spec("llama.cpp", sys.executable, "llama_cpp_adapter.py", *options))
    if args.openvino_python is not None:
        options = ["--exported", args.openvino_model]
        specs.append(spec("OpenVINO GenAI", args.openvino_python, "openvino_adapter.py", *options))
    if args.transformers is not None:
        specs.append(spec("transformers", args.transformers, "transformers_adapter.py"))
    return specs


def run_rounds(
    name: str, requests: Sequence[Request], peers: Sequence[PeerProcess], rounds: int
) -> tuple[dict[str, list[Measured]], dict[str, str]]:
    """The runs of those that finished every round, and why others did not. SystemExit if fastpaged did not."""
    runs: dict[str, list[Measured]] = {}
    failures: dict[str, str] = {}
    metric = metric_of(requests)

    def attempt(peer: PeerProcess, index: int | None) -> None:
        label = peer.spec.name
        if label in failures:
            return
        begin = time.monotonic()
        try:
            if index is None:
                peer.prepare(requests)
                say(f"{name}: {peer.description} is ready after {time.monotonic() - begin:.1f} s")
                runs[label] = []
                return
            run = peer.run(requests)
        except PeerError as error:
            if label == OURS:
                raise SystemExit(f"{OURS}: {error}") from None
            failures[label] = str(error)
            runs.pop(label, None)
            say(f"{name}: {label} failed: {error}")
            return
        runs[label].append(run)
        rate = metric.of(requests, run)
        say(f"{name}: round {index + 1} of {rounds}: {label} {rate:.1f} {metric.unit}, {run.wall_s:.2f} s")

    for peer in peers:
        attempt(peer, None)
    for index in range(rounds):
        first = index % len(peers)
        for peer in [*peers[first:], *peers[:first]]:
            attempt(peer, index)
    return runs, failures


def measure(
    name: str, file: Path, peers: Sequence[PeerProcess], args: argparse.Namespace
) -> tuple[WorkloadResult, FirstTokens | None]:
    """All of one workload, the machine's rates included."""
    requests: list[Request] = json.loads(file.read_text(encoding="utf-8"))
    machine = args.output / "machine.json"
    say(f"{name}: measuring the machine")
    before = measure_machine(args.model, args.threads, machine)
    runs, failures = run_rounds(name, requests, peers, args.rounds)
    first_tokens = None
    if num_shared_tokens(requests):
        still_there = [peer for peer in peers if peer.spec.name in runs]
        first_tokens = measure_first_tokens(requests, still_there, args.rounds, say)
    after = measure_machine(args.model, args.threads, machine)
    machine.write_text(json.dumps(better_figures(before, after), indent=2) + "\n", encoding="utf-8")
    limit = limit_of(requests, file, machine, args)
    warnings = changes(*(machine_rates(figures["rates"], args.threads) for figures in (before, after)))
    descriptions = {peer.spec.name: peer.description for peer in peers}
    return WorkloadResult(name, requests, runs, failures, descriptions, limit, warnings), first_tokens


def limit_of(requests: Sequence[Request], file: Path, machine: Path, args: argparse.Namespace) -> float:
    """In the unit of the workload's metric. machine: the file with the rates of this run."""
    metric = metric_of(requests)
    if metric.name == "output":
        seconds = workload_limit(args.model, file, machine, args.threads, _MAX_NUM_SEQS)
        return sum(request["out"] for request in requests) / seconds
    work = ModelWork.of(args.model)
    rates = machine_rates(json.loads(machine.read_text(encoding="utf-8"))["rates"], args.threads)
    return (work.decode_limit if metric.name == "decode" else work.prefill_limit)(requests[0], rates)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> None:
    args = arguments()
    args.output.mkdir(parents=True, exist_ok=True)
    made = write(args.output, [w for w in args.workloads if w in WORKLOADS], vocab_size_of(args.model))
    files = {name if name in WORKLOADS else Path(name).stem: made.get(name, Path(name)) for name in args.workloads}
    peers = [
        PeerProcess(spec, args.output / f"{spec.name.replace(' ', '-')}.log", args.start_limit, args.time_limit)
        for spec in specs_of(args)
    ]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the peers are ended
    results: list[tuple[WorkloadResult, FirstTokens | None]] = []
    try:
        for name, file in files.items():
            results.append(measure(name, file, peers, args))
            print(markdown(*results[-1]), flush=True)
            write_results(results, args)
    finally:
        for peer in peers:
            peer.close()


def markdown(result: WorkloadResult, first_tokens: FirstTokens | None) -> str:
    return result.markdown() + ("" if first_tokens is None else f"\n{first_tokens.markdown()}")


def write_results(results: Sequence[tuple[WorkloadResult, FirstTokens | None]], args: argparse.Namespace) -> None:
    """After each workload, so that a run that is ended early leaves what it has."""
    figures = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "model": args.model.name,
        "threads": args.threads,
        "rounds": args.rounds,
        "workloads": [
            {**result.as_dict(), "first_tokens": None if first is None else first.as_dict()}
            for result, first in results
        ],
    }
    (args.output / "peers.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    title = f"## {args.model.name}, bfloat16, {args.threads} threads, {args.rounds} rounds: median [least-most]\n"
    text = "\n".join([title, *(markdown(*result) for result in results)])
    (args.output / "peers.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
