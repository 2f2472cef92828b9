"""Instructions of one CPU stay in functions of their own file.

An inline function that a kernel's file compiles for AVX-512 may be the copy the linker keeps for the whole program; a
CPU without AVX-512 then dies far from any kernel. So no weak symbol of those files may hold such an instruction.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CPP = Path(__file__).parents[2] / "cpp"
SOURCES = sorted((CPP / "fastpaged" / "ops" / "cpu").glob("*.cc"))
# What holds no arithmetic on vectors.
PLAIN = {"attention_work.cc", "vector_table.cc", "weight_panels.cc"}
COMPILER = os.environ.get("CXX") or shutil.which("c++") or "g++"

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="kernels for x86-64 only")


def compilations() -> list[tuple[Path, str]]:
    """Each source with the instruction sets it is compiled for: those of vectors, or "" for its own."""
    return [
        (source, isa)
        for source in SOURCES
        for isa in (("avx2", "avx512") if "FASTPAGED_VECTOR_ISA" in source.read_text() else ("",))
    ]


def functions(object_file: Path) -> dict[str, list[str]]:
    """Symbol to the instructions of its code."""
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", object_file], check=True, capture_output=True, text=True
    ).stdout
    found: dict[str, list[str]] = {}
    code: list[str] = []
    for line in listing.splitlines():
        if label := re.fullmatch(r"[0-9a-f]+ <(.+)>:", line):
            code = found.setdefault(label[1], [])
        elif instruction := re.match(r"\s+[0-9a-f]+:\t(.+)", line):
            code.append(instruction[1])
    return found


def weak_symbols(object_file: Path) -> set[str]:
    listing = subprocess.run(["nm", object_file], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in listing.splitlines() if line.split()[-2] in "wWvVu"}


def beyond_baseline(instruction: str) -> bool:
    """AVX and later start with v (as vzeroupper does), AVX-512 masks with k, AMX with ldtile, tile and tdp."""
    return instruction.startswith(("v", "k", "tile", "tdp", "ldtile", "sttile")) and not instruction.startswith("ver")


def beyond_avx2(instruction: str) -> bool:
    """Registers that only AVX-512 has."""
    return re.search(r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])|%k[0-7]", instruction) is not None


@pytest.mark.parametrize(("source", "isa"), compilations(), ids=lambda part: getattr(part, "name", part))
def test_no_shared_function_holds_instructions_beyond_the_baseline(source: Path, isa: str, tmp_path: Path) -> None:
    object_file = tmp_path / "kernel.o"
    command = [COMPILER, "-std=c++20", "-O2", "-fPIC", "-ffp-contract=off", f"-I{CPP}", "-c", str(source)]
    if isa:
        command.append(f"-DFASTPAGED_VECTOR_ISA={isa}")
    subprocess.run([*command, "-o", str(object_file)], check=True)
    code = functions(object_file)
    everything = [instruction for instructions in code.values() for instruction in instructions]
    assert any(map(beyond_baseline, everything)) == (source.name not in PLAIN)
    leaked = {name for name in weak_symbols(object_file) & code.keys() if any(map(beyond_baseline, code[name]))}
    assert not leaked
    assert isa != "avx2" or not any(map(beyond_avx2, everything))


def test_every_kernel_of_vectors_is_compiled_for_each_instruction_set() -> None:
    sources = {isa: {source.stem for source, of in compilations() if of == isa} for isa in ("avx2", "avx512")}
    assert sources["avx2"] == sources["avx512"] >= {"linear", "paged_attention", "rms_norm", "rotary_cache_write"}
