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
from dataclasses import dataclass
from pathlib import Path

import pytest

CPP = Path(__file__).parents[2] / "cpp"
LIBRARY = Path(__file__).parents[2] / "cmake" / "FastpagedLibrary.cmake"
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


@dataclass(frozen=True)
class Compiled:
    """One object file. code: symbol to its instructions; weak: those symbols of which the linker keeps one for all."""

    source: Path
    isa: str
    code: dict[str, list[str]]
    weak: set[str]

    @property
    def instructions(self) -> list[str]:
        return [instruction for instructions in self.code.values() for instruction in instructions]


def release_flags() -> list[str]:
    """What the optimiser is told in the build that is shipped: what it inlines decides what is left of a function."""
    flags = re.search(r'set\(CMAKE_CXX_FLAGS_RELEASE "(.+)"\)', LIBRARY.read_text())
    assert flags is not None
    return [*flags[1].split(), "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-ffp-contract=off"]


@pytest.fixture(scope="module", params=compilations(), ids=lambda of: "-".join(filter(None, (of[0].name, of[1]))))
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """Compiled once for all tests."""
    source, isa = request.param
    object_file = tmp_path_factory.mktemp("kernel") / "kernel.o"
    command = [COMPILER, "-std=c++20", *release_flags(), f"-I{CPP}", "-c", str(source), "-o", str(object_file)]
    if isa:
        command.append(f"-DFASTPAGED_VECTOR_ISA={isa}")
    subprocess.run(command, check=True)
    return Compiled(source, isa, functions(object_file), weak_symbols(object_file))


def test_no_shared_function_holds_instructions_beyond_the_baseline(compiled: Compiled) -> None:
    shared = compiled.weak & compiled.code.keys()
    assert not {name for name in shared if any(map(beyond_baseline, compiled.code[name]))}


def test_a_kernel_holds_instructions_beyond_the_baseline(compiled: Compiled) -> None:
    assert any(map(beyond_baseline, compiled.instructions)) == (compiled.source.name not in PLAIN)


def test_nothing_compiled_for_avx2_holds_what_only_avx512_has(compiled: Compiled) -> None:
    assert compiled.isa != "avx2" or not any(map(beyond_avx2, compiled.instructions))


def test_every_kernel_of_vectors_is_compiled_for_each_instruction_set() -> None:
    sources = {isa: {source.stem for source, of in compilations() if of == isa} for isa in ("avx2", "avx512")}
    assert sources["avx2"] == sources["avx512"] >= {"linear", "paged_attention", "rms_norm", "rotary_cache_write"}
