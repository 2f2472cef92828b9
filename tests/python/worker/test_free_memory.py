"""Free memory as Linux tells it, from made-up files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastpaged.worker.free_memory import free_memory_bytes

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": f"MemTotal:  {16 << 20} kB\nMemFree:  {1 << 20} kB\nMemAvailable:  {8 << 20} kB\n"}


def test_without_a_group_it_is_what_the_machine_has_available(tmp_path: Path) -> None:
    assert free_memory_bytes(write(tmp_path, MEMINFO)) == 8 * GIB


@pytest.mark.parametrize(
    ("limit", "used", "cache", "expected"),
    [
        ("max", 6 * GIB, 0, 8 * GIB),
        (str(4 * GIB), 1 * GIB, 0, 3 * GIB),
        (str(4 * GIB), 3 * GIB, 2 * GIB, 3 * GIB),  # page cache makes room
        (str(4 * GIB), 5 * GIB, 0, 0),
        (str(64 * GIB), 1 * GIB, 0, 8 * GIB),
    ],
)
def test_a_version_2_group_leaves_its_limit_less_what_is_used(
    tmp_path: Path, limit: str, used: int, cache: int, expected: int
) -> None:
    group = {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/b/memory.max": limit + "\n",
        "sys/fs/cgroup/a/b/memory.current": f"{used}\n",
        "sys/fs/cgroup/a/b/memory.stat": f"anon 5\ninactive_file {cache}\n",
    }
    assert free_memory_bytes(write(tmp_path, MEMINFO | group)) == expected


def test_every_enclosing_group_counts(tmp_path: Path) -> None:
    groups = {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/b/memory.current": "0\n",
        "sys/fs/cgroup/a/memory.max": f"{3 * GIB}\n",
        "sys/fs/cgroup/a/memory.current": f"{GIB}\n",
    }
    assert free_memory_bytes(write(tmp_path, MEMINFO | groups)) == 2 * GIB


def test_inside_a_container_the_group_is_the_mount_itself(tmp_path: Path) -> None:
    group = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory.current": f"{GIB}\n",
    }
    assert free_memory_bytes(write(tmp_path, MEMINFO | group)) == GIB


def test_a_version_1_group_is_understood_too(tmp_path: Path) -> None:
    group = {
        "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/1\n",
        "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": f"{5 * GIB}\n",
        "sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory/docker/1/memory.stat": f"cache 1\ntotal_inactive_file {GIB}\n",
    }
    assert free_memory_bytes(write(tmp_path, MEMINFO | group)) == 2 * GIB


def test_the_limit_of_the_address_space_counts(tmp_path: Path) -> None:
    row = "Max address space         {}           unlimited            bytes\n"
    files = MEMINFO | {"proc/self/status": f"VmPeak:\t 999 kB\nVmSize:\t {1 << 20} kB\n"}
    for limit, expected in (("unlimited", 8 * GIB), (str(64 * GIB), 8 * GIB), (str(6 * GIB), 5 * GIB), ("1", 0)):
        files["proc/self/limits"] = "Limit  Soft Limit  Hard Limit  Units\n" + row.format(limit)
        assert free_memory_bytes(write(tmp_path, files)) == expected


def test_where_linux_says_nothing_the_system_is_asked(tmp_path: Path) -> None:
    assert free_memory_bytes(tmp_path) > 0


def test_this_machine_has_some() -> None:
    assert free_memory_bytes() > 0
