"""How much memory this process could still take: of the machine, within its control group."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath


def free_memory_bytes(root: Path = Path("/")) -> int:
    """The least of what the system says is available, what every enclosing memory cgroup leaves, and what the limit of
    the address space (ulimit -v) leaves.

    Page cache counts as free: it makes room. root: where /proc and /sys are, for tests. Where Linux's files are absent,
    the free pages that sysconf knows, or the machine's physical memory.
    """
    limits = [_available_of_machine(root), *_left_in_cgroups(root), *_left_of_address_space(root)]
    return max(0, min(limits))


def _available_of_machine(root: Path) -> int:
    fields = _fields(root / "proc/meminfo")
    if "MemAvailable" in fields:
        return fields["MemAvailable"] * 1024
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def _left_in_cgroups(root: Path) -> list[int]:
    """Version 2 (memory.max) and version 1 (memory.limit_in_bytes), from the process's own group upwards."""
    left = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            mount, limit, usage, cache = "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            mount, limit, usage, cache = (
                "sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for ancestor in (group, *group.parents):  # the last parent is the mount itself
            folder = root / mount / ancestor
            maximum, used = _number(folder / limit), _number(folder / usage)
            if maximum is not None and used is not None:
                left.append(maximum - used + _fields(folder / "memory.stat").get(cache, 0))
    return left


def _left_of_address_space(root: Path) -> list[int]:
    name = "Max address space"
    lines = _text(root / "proc/self/limits").splitlines()
    limit = next((line.removeprefix(name).split()[0] for line in lines if line.startswith(name)), "unlimited")
    used = _fields(root / "proc/self/status").get("VmSize")
    return [int(limit) - used * 1024] if limit.isdigit() and used is not None else []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """None for "max" and for a file that is not there."""
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _fields(path: Path) -> dict[str, int]:
    """Lines of "name[:] number ..."."""
    fields = {}
    for line in _text(path).splitlines():
        words = line.replace(":", " ").split()
        if len(words) >= 2 and words[1].isdigit():
            fields[words[0]] = int(words[1])
    return fields
