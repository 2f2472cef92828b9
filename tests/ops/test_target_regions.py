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
KERNELS = {"linear.cc", "paged_attention.cc", "rms_norm.cc", "linear_amx.cc", "linear_amx_emulated.cc"}
COMPILER = os.environ.get("CXX") or shutil.which("c++") or "g++"

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="kernels for x86-64 only")


def functions(object_file: Path) -> dict[str, list[str]]:
    """Symbol to the mnemonics of its code."""
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", object_file], check=True, capture_output=True, text=True
    ).stdout
    found: dict[str, list[str]] = {}
    code: list[str] = []
    for line in listing.splitlines():
        if label := re.fullmatch(r"[0-9a-f]+ <(.+)>:", line):
            code = found.setdefault(label[1], [])
        elif instruction := re.match(r"\s+[0-9a-f]+:\t(\S+)", line):
            code.append(instruction[1])
    return found


def weak_symbols(object_file: Path) -> set[str]:
    listing = subprocess.run(["nm", object_file], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in listing.splitlines() if line.split()[-2] in "wWvVu"}


def beyond_baseline(mnemonic: str) -> bool:
    """AVX and later start with v (as vzeroupper does), AVX-512 masks with k, AMX with ldtile, tile and tdp."""
    return mnemonic.startswith(("v", "k", "tile", "tdp", "ldtile", "sttile")) and mnemonic not in ("verr", "verw")


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_no_shared_function_holds_instructions_beyond_the_baseline(source: Path, tmp_path: Path) -> None:
    object_file = tmp_path / "kernel.o"
    command = [COMPILER, "-std=c++20", "-O2", "-fPIC", "-ffp-contract=off", f"-I{CPP}", "-c", str(source)]
    subprocess.run([*command, "-o", str(object_file)], check=True)
    code = functions(object_file)
    weak = weak_symbols(object_file)
    if source.name in KERNELS:
        assert any(beyond_baseline(mnemonic) for mnemonics in code.values() for mnemonic in mnemonics)
    leaked = {name for name in weak & code.keys() if any(beyond_baseline(mnemonic) for mnemonic in code[name])}
    assert not leaked
