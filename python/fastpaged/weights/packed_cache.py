"""PackedCache: the folder of packed files, one for each model and way of packing it.

A file's name is three digests: of where the model lies, of the state of its files, and of all else that its bytes
depend on. Files are written under another name, made durable, and renamed: a name leads to a whole file or to none, and
of two processes that write the same one, the last one wins. They are unlinked, but never written into: who has one
mapped keeps it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastpaged.errors import InvalidRequestError
from fastpaged.weights.packed_file import PackedFile, UnusablePackedFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fastpaged import _core
    from fastpaged.weights.packed_file import Layout

CACHE_VARIABLE = "FASTPAGED_CACHE"
LIMIT_VARIABLE = "FASTPAGED_CACHE_GIB"
DEFAULT_LIMIT_GIB = 20.0
_SUFFIX = ".weights"
_UNFINISHED_SUFFIX = ".part"
_DISK_MARGIN = 1 << 30  # bytes that are left free on the disk
_DIGITS = 16
_MAX_BUFFERS = 1024  # that every system takes at once


@dataclass(frozen=True)
class PackedKey:
    """All that the bytes of a packed file depend on."""

    sources: tuple[tuple[object, ...], ...]  # FileIdentity of each model file: the path comes first
    settings: Mapping[str, object]  # JSON

    @property
    def values(self) -> dict[str, object]:
        """As a packed file holds it."""
        return {"sources": [list(source) for source in self.sources], "settings": dict(self.settings)}

    @property
    def name(self) -> str:
        """Of the file."""
        paths = [source[0] for source in self.sources]
        return "-".join(map(_digest, (paths, self.sources, self.settings))) + _SUFFIX

    @property
    def place(self) -> str:
        """What names of all files of this model begin with, in whatever state its files are."""
        return self.name.split("-")[0] + "-"

    @property
    def state(self) -> str:
        """What names of all files of this model begin with, its files being as they are."""
        return "-".join(self.name.split("-")[:2]) + "-"


@dataclass(frozen=True)
class CachedFile:
    """What is in the folder. source: of the first model file; "?" where the file cannot be read."""

    path: Path
    num_bytes: int
    last_used: float  # seconds since the epoch
    source: str


class PackedCache:
    """One folder, made when it is first written to, for its owner alone. limit_bytes: of all files together."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes

    @classmethod
    def from_environment(cls) -> PackedCache | None:
        """$FASTPAGED_CACHE, else $XDG_CACHE_HOME/fastpaged, else ~/.cache/fastpaged. None where FASTPAGED_CACHE is
        empty, or there is no home."""
        limit = _limit_bytes()
        given = os.environ.get(CACHE_VARIABLE)
        if given is not None:
            return cls(Path(given).absolute(), limit) if given else None
        caches = os.environ.get("XDG_CACHE_HOME")
        if caches and os.path.isabs(caches):
            return cls(Path(caches) / "fastpaged", limit)
        home = os.path.expanduser("~")
        return cls(Path(home) / ".cache" / "fastpaged", limit) if os.path.isabs(home) else None

    def open(self, key: PackedKey, device: _core.CpuDevice) -> PackedFile | None:
        """For a device of the key's layout. None, with a line in the log where there is a file that cannot be used."""
        path = self.folder / key.name
        try:
            file = PackedFile.open(path)
            if file.key != json.loads(json.dumps(key.values)):
                raise UnusablePackedFileError("it is of another model")
            file.check_linears(device)
        except FileNotFoundError:
            return None
        except (OSError, UnusablePackedFileError) as error:
            _log().info("packed weights in %s are not used, and made anew: %s", path, error)
            return None
        with contextlib.suppress(OSError):  # the stamp of its use: unlike the time of access, no reading moves it
            os.utime(path)
        return file

    def write(self, key: PackedKey, layout: Layout, watch: Callable[[Path], None]) -> Path:
        """watch: called with the path of the unfinished file when it is made and whenever some of it is written; it may
        raise. Raises OSError or UnusablePackedFileError with the reason. Whatever is raised, nothing is left."""
        self._make_folder()
        self._remove_unfinished()
        self._make_room(key, layout.num_bytes)
        path = self.folder / key.name
        descriptor, name = tempfile.mkstemp(_UNFINISHED_SUFFIX, path.stem + ".", self.folder)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it is being written, says the lock
            watch(Path(name))
            os.truncate(descriptor, layout.num_bytes)
            for offset, buffers in layout.windows():
                _write_all(descriptor, buffers, offset)
                watch(Path(name))
            os.fsync(descriptor)  # before the name: after a crash it must not lead to a file without bytes
            os.rename(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        finally:
            os.close(descriptor)
        return path

    def files(self) -> list[CachedFile]:
        """The one that was not used for longest comes first."""
        found = []
        for path in self._paths(_SUFFIX):
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append(CachedFile(path, status.st_size, status.st_mtime, _source_of(path)))
        return sorted(found, key=lambda file: (file.last_used, file.path.name))

    def clear(self) -> int:
        """Removes all files; how many bytes that were."""
        num_bytes = 0
        for file in self.files():
            with contextlib.suppress(FileNotFoundError):
                file.path.unlink()
                num_bytes += file.num_bytes
        self._remove_unfinished()
        return num_bytes

    def _paths(self, suffix: str) -> Sequence[Path]:
        try:
            return [path for path in self.folder.iterdir() if path.suffix == suffix]
        except OSError:
            return []

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self.folder.stat()
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UnusablePackedFileError(f"{self.folder} may be written by others than user {os.geteuid()}")

    def _remove_unfinished(self) -> None:
        """Those of processes that ended while they wrote: nobody has them locked."""
        for path in self._paths(_UNFINISHED_SUFFIX):
            with contextlib.suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()

    def _make_room(self, key: PackedKey, num_bytes: int) -> None:
        """Removes files of this model in an earlier state, and, to stay within the limit, those not used for longest.
        Raises UnusablePackedFileError where there is no room all the same."""
        if num_bytes > self.limit_bytes:
            raise UnusablePackedFileError(f"{num_bytes} bytes are more than {LIMIT_VARIABLE} allows")
        files = [file for file in self.files() if file.path.name != key.name]
        stale = [
            file for file in files if file.path.name.startswith(key.place) and not file.path.name.startswith(key.state)
        ]
        kept = [file for file in files if file not in stale]
        while sum(file.num_bytes for file in kept) + num_bytes > self.limit_bytes:
            stale.append(kept.pop(0))
        self._check_disk(num_bytes, sum(file.num_bytes for file in stale))  # before others go for nothing
        for file in stale:
            with contextlib.suppress(FileNotFoundError):
                file.path.unlink()
        self._check_disk(num_bytes, 0)  # for who has one mapped keeps its bytes

    def _check_disk(self, num_bytes: int, num_stale: int) -> None:
        """num_stale: bytes that are still to be freed."""
        disk = os.statvfs(self.folder)
        free = disk.f_bavail * disk.f_frsize + num_stale
        if free < num_bytes + _DISK_MARGIN:
            raise UnusablePackedFileError(
                f"{num_bytes} bytes would leave less than {_DISK_MARGIN} on the disk of {self.folder}, which has {free}"
            )


def _limit_bytes() -> int:
    text = os.environ.get(LIMIT_VARIABLE) or str(DEFAULT_LIMIT_GIB)
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < 2**33:
        raise InvalidRequestError(f"{LIMIT_VARIABLE} must be a number of GiB of at least 0, got {text!r}")
    return int(limit * 2**30)


def _source_of(path: Path) -> str:
    try:
        sources = PackedFile.open(path).key["sources"]
        return str(sources[0][0]) if isinstance(sources, list) else "?"
    except (OSError, UnusablePackedFileError, LookupError, TypeError):
        return "?"


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode("ascii")).hexdigest()[:_DIGITS]


def _write_all(descriptor: int, buffers: list[memoryview], offset: int) -> None:
    while buffers:
        written = os.pwritev(descriptor, buffers[:_MAX_BUFFERS], offset)
        offset += written
        while buffers and written >= len(buffers[0]):
            written -= len(buffers.pop(0))
        if written:
            buffers[0] = buffers[0][written:]


def _log() -> logging.Logger:
    return logging.getLogger(__name__)
