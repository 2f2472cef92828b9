"""Are the tests any good? Faults are seeded, one at a time; each must be caught by a C++ test.

    python tests/mutants/run_mutants.py [--work build/mutants] [--only WORD] [--rooms ROOM,ROOM] [--timeout 120]

Works on a scratch copy of the tree in one build directory, so that a fault costs the recompilation of one file. First
the copy as it is must pass. Then each fault must apply, must compile, and must make a test binary fail: each that does
is named, with the first test case that complains. One that does not end within the timeout counts as caught too, and is
called a hang.
Exit status 1 if a fault survives, does not compile, or does not apply.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from faults import FAULTS, Fault
from pressure_faults import PRESSURE_FAULTS

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("CMakeLists.txt", "cmake", "cpp", "tests/cpp")
TESTS = ("test_kv_cache", "test_scheduler", "test_ops", "test_graph", "test_sampling", "test_proofs")
FLAGS = "-O1 -g1 -D_GLIBCXX_ASSERTIONS"


@dataclass(frozen=True)
class Verdict:
    """What became of one fault."""

    caught: bool
    how: list[str]


class Tree:
    """A scratch copy of the tree, and its one build directory."""

    def __init__(self, work: Path, timeout: float, tests: Sequence[str]):
        self._source = work / "tree"
        self._build = work / "build"
        self._timeout = timeout
        self._tests = tests

    def copy(self) -> None:
        """Brings the copy up to date; what is the same stays untouched, and is not compiled again."""
        wanted: set[Path] = set()
        for name in COPIED:
            top = ROOT / name
            wanted.update(
                path.relative_to(ROOT) for path in ([top] if top.is_file() else top.rglob("*")) if path.is_file()
            )
        for path in sorted(wanted):
            here = self._source / path
            if not here.is_file() or here.read_bytes() != (ROOT / path).read_bytes():
                here.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / path, here)
        for path in sorted(self._source.rglob("*")):
            if path.is_file() and path.relative_to(self._source) not in wanted:
                path.unlink()

    def configure(self) -> None:
        options = ("BUILD_PYTHON=OFF", "BUILD_TESTS=ON", "WERROR=OFF", "CUDA=OFF")
        command = ["cmake", "-S", str(self._source), "-B", str(self._build), "-G", "Ninja"]
        command += [f"-DFASTPAGED_{option}" for option in options]
        command += ["-DCMAKE_BUILD_TYPE=Mutants", f"-DCMAKE_CXX_FLAGS_MUTANTS={FLAGS}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def build(self) -> str | None:
        """None, or what the compiler said."""
        command = ["cmake", "--build", str(self._build), "--target", *self._tests]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return None if done.returncode == 0 else done.stdout

    def test(self) -> list[str]:
        """What each binary that fails complained of first."""
        complaints = []
        for test in self._tests:
            command = [str(self._build / "tests/cpp" / test), "--abort-after=1", "--no-colors=true"]
            try:
                done = subprocess.run(
                    command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=self._timeout
                )
            except subprocess.TimeoutExpired:
                complaints.append(f"{test}: hang (more than {self._timeout:g} s)")
                continue
            if done.returncode != 0:
                complaints.append(f"{test}: {first_failing_case(done.stdout)}")
        return complaints

    def try_fault(self, fault: Fault) -> Verdict:
        path = self._source / "cpp/fastpaged" / fault.file
        text = path.read_text(encoding="utf-8")
        if text.count(fault.good) != 1:
            return Verdict(False, [f"does not apply: {fault.file} has its text {text.count(fault.good)} times"])
        path.write_text(text.replace(fault.good, fault.bad), encoding="utf-8")
        try:
            errors = self.build()
            if errors is not None:
                first = next((line for line in errors.splitlines() if "error" in line), errors[-200:])
                return Verdict(False, [f"does not compile: {first}"])
            complaints = self.test()
            return Verdict(bool(complaints), complaints or ["survived: every test passes"])
        finally:
            path.write_text(text, encoding="utf-8")


def first_failing_case(output: str) -> str:
    """doctest names a test case before what it says in it, be that a message or an error."""
    case = "before any test case"
    for line in output.splitlines():
        if line.startswith("TEST CASE:"):
            case = line.removeprefix("TEST CASE:").strip()
        elif re.search(r": (FATAL )?ERROR: ", line):
            return case
    return output.strip()[-200:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / "build/mutants")
    parser.add_argument("--only", default="", help="only faults whose name has this in it")
    parser.add_argument("--rooms", default="", help="only the tests of these rooms, e.g. kv_cache,scheduler")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one test binary")
    args = parser.parse_args()
    os.environ.pop("FASTPAGED_PROOF_SCALE", None)  # the proofs as they are in `make test`

    tests = [f"test_{room}" for room in args.rooms.split(",")] if args.rooms else TESTS
    tree = Tree(args.work, args.timeout, tests)
    tree.copy()
    tree.configure()
    start = time.monotonic()
    complaints = [errors] if (errors := tree.build()) else tree.test()
    if complaints:
        sys.exit("\n".join(["without any fault, the tests fail:", *complaints]))
    print(f"no fault: passes ({time.monotonic() - start:.0f} s with the build)", flush=True)

    verdicts: dict[str, Verdict] = {}
    for fault in (*FAULTS, *PRESSURE_FAULTS):
        if args.only in fault.name:
            start = time.monotonic()
            verdict = verdicts[fault.name] = tree.try_fault(fault)
            print(f"\n{fault.name} ({time.monotonic() - start:.0f} s)", *verdict.how, sep="\n    ", flush=True)

    num_caught = sum(verdict.caught for verdict in verdicts.values())
    print()
    for name, verdict in verdicts.items():
        print(f"{'caught' if verdict.caught else 'MISSED'}  {name.split(':')[0]:<30}  {verdict.how[0]}")
    print(f"{num_caught} of {len(verdicts)} faults caught")
    sys.exit(0 if verdicts and num_caught == len(verdicts) else 1)


if __name__ == "__main__":
    main()
