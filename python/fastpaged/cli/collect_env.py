"""`fastpaged collect-env`: what a bug report needs to know about this machine."""

from __future__ import annotations

import os
import platform
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

_PACKAGES = ("numpy", "tokenizers", "jinja2")
# What our kernels look for, as the kernel spells it.
_FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "amx_tile", "amx_bf16", "bf16", "sve")


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the subcommand to the parser of `fastpaged`."""
    parser = commands.add_parser(
        "collect-env", help="print what a bug report needs", description="Print what a bug report needs."
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints `name: value` lines. An invalid FASTPAGED_ISA is an error after them, not instead of them."""
    from fastpaged import _core

    rows = {
        "fastpaged": _core.__version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cpu features": _cpu_features(),
        "cpus available": f"{_core.available_cpus()} of {os.cpu_count()}",
        "memory": _memory(),
        "isas known": ", ".join(_core.known_isas()),
        "isas supported": ", ".join(_core.supported_isas()),
        "FASTPAGED_ISA": os.environ.get("FASTPAGED_ISA", "(not set)"),
        **{package: _version(package) for package in _PACKAGES},
    }
    for name, value in rows.items():
        print(f"{name + ':':<16} {value}")
    print(f"{'isa in use:':<16} {_core.default_isa()}")
    return 0


def _version(package: str) -> str:
    from importlib import metadata  # which no other command should wait for

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _first_value(path: str, key: str) -> str | None:
    """The value of the first `key: value` line of a file under /proc; None where there is no such file or line."""
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == key:
                    return value.strip()
    except OSError:
        pass
    return None


def _cpu_name() -> str:
    return _first_value("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()


def _cpu_features() -> str:
    flags = (_first_value("/proc/cpuinfo", "flags") or _first_value("/proc/cpuinfo", "Features") or "").split()
    return " ".join(feature for feature in _FEATURES if feature in flags)


def _memory() -> str:
    available, total = (_first_value("/proc/meminfo", key) for key in ("MemAvailable", "MemTotal"))
    return f"{available} available of {total}" if available and total else "unknown"
