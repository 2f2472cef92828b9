"""PackedCache: the packed files of a folder, one for each model and way of packing it.

A file's name is three digests: of where the model lies, of the state of its files, and of all else that its bytes
depend on. Files are written under another name, made durable, and renamed: a name leads to a whole file or to none.
Whoever writes one has it locked, and others leave it alone. They are unlinked, but never written into: who has one
mapped keeps it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastpaged.errors import InvalidRequestError
from fastpaged.weights.cache_folder import (
    BEING_WRITTEN,
    DIGITS,
    SUFFIX,
    UNFINISHED_SUFFIX,
    CacheFolder,
    new_file,
    rename,
)
from fastpaged.weights.packed_file import PackedFile, UnusablePackedFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fastpaged import _core
    from fastpaged.weights.cache_folder import CachedFile, UnfinishedFile
    from fastpaged.weights.packed_file import Layout

CACHE_VARIABLE = "FASTPAGED_CACHE"
LIMIT_VARIABLE = "FASTPAGED_CACHE_GIB"
DEFAULT_LIMIT_GIB = 20.0
_DISK_MARGIN = 1 << 30  # bytes that are left free on the disk
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
        return "-".join(map(_digest, (paths, self.sources, self.settings))) + SUFFIX

    def replaces(self, file: CachedFile) -> bool:
        """Whether that one is of the same model, in another state of its files or of another version of fastpaged."""
        place, state, _ = self.name.split("-")
        others = file.path.name.split("-")
        return others[0] == place and (others[1] != state or file.version != self.settings.get("version"))


class PackedCache:
    """One folder, made when it is first written to, for its owner alone. limit_bytes: of all files together."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._folder = CacheFolder(folder)

    @classmethod
    def from_environment(cls) -> PackedCache | None:
        """$FASTPAGED_CACHE, else $XDG_CACHE_HOME/fastpaged, else ~/.cache/fastpaged. None where FASTPAGED_CACHE is
        empty, or there is no home."""
        given = os.environ.get(CACHE_VARIABLE)
        if given is not None:
            return cls(Path(os.path.expanduser(given)).absolute(), _limit_bytes()) if given else None
        caches = os.environ.get("XDG_CACHE_HOME")
        if caches and os.path.isabs(caches):
            return cls(Path(caches) / "fastpaged", _limit_bytes())
        home = os.path.expanduser("~")
        return cls(Path(home) / ".cache" / "fastpaged", _limit_bytes()) if os.path.isabs(home) else None

    def open(self, key: PackedKey, device: _core.CpuDevice) -> PackedFile | None:
        """For a device of the key's layout. None, with a line in the log where there is a file that cannot be used.
        Removes what processes that ended left unfinished."""
        path = self.folder / key.name
        try:
            self._folder.check()
            self._tidy()
            file = PackedFile.open(path)
            if file.key != _as_read(key):
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
        """Returns at once where another process has written the same meanwhile. watch: called with the path of the
        unfinished file when it is made, whenever some of it is written, and at the end; it may raise. Raises OSError or
        UnusablePackedFileError with the reason, also where another process is at it. Whatever is raised, nothing is
        left."""
        self._folder.make()
        path = self.folder / key.name
        unfinished = path.with_suffix(UNFINISHED_SUFFIX)
        with contextlib.ExitStack() as stack:
            with self._folder.locked(wait=True):
                if _is_there(path, key, layout):
                    return path
                self._folder.remove_abandoned()
                if os.path.lexists(unfinished):
                    raise UnusablePackedFileError(BEING_WRITTEN)
                self._make_room(key, layout.num_bytes)
                descriptor = stack.enter_context(new_file(unfinished))
                watch(unfinished)
                _allocate(descriptor, layout.num_bytes)
                self._check_disk(0, 0)  # others take from it too
            for offset, buffers in layout.windows():
                _write_all(descriptor, buffers, offset)
                watch(unfinished)
            os.fsync(descriptor)  # before the name: after a crash it must not lead to a file without bytes
            watch(unfinished)
            rename(descriptor, unfinished, path)
        return path

    def files(self) -> list[CachedFile]:
        """The one that was not used for longest comes first."""
        return self._folder.files()

    def unfinished(self) -> list[UnfinishedFile]:
        """Those that are being written, and those that processes left which ended."""
        return self._folder.unfinished()

    def clear(self) -> int:
        """Removes all files that nobody is writing; how many bytes that were."""
        num_bytes = self._folder.remove_abandoned()
        for file in self.files():
            with contextlib.suppress(FileNotFoundError):
                file.path.unlink()
                num_bytes += file.num_bytes
        return num_bytes

    def _tidy(self) -> None:
        with contextlib.suppress(OSError), self._folder.locked(wait=False):
            num_bytes = self._folder.remove_abandoned()
            if num_bytes:
                _log().info("%d bytes of unfinished packed weights in %s are removed", num_bytes, self.folder)

    def _make_room(self, key: PackedKey, num_bytes: int) -> None:
        """Removes files of this model in an earlier state or of another version, and, to stay within the limit, those
        not used for longest. Raises UnusablePackedFileError where there is no room all the same."""
        need = num_bytes + sum(file.num_bytes for file in self.unfinished())
        if need > self.limit_bytes:
            raise UnusablePackedFileError(
                f"{num_bytes} bytes, with {need - num_bytes} that are being written, are more than {LIMIT_VARIABLE} "
                "allows"
            )
        files = [file for file in self.files() if file.path.name != key.name]
        stale = [file for file in files if key.replaces(file)]
        kept = [file for file in files if file not in stale]
        while sum(file.num_bytes for file in kept) + need > self.limit_bytes:
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


def _as_read(key: PackedKey) -> object:
    """What a packed file with this key says of it."""
    return json.loads(json.dumps(key.values))


def _is_there(path: Path, key: PackedKey, layout: Layout) -> bool:
    try:
        file = PackedFile.open(path)
    except (OSError, UnusablePackedFileError):
        return False
    return file.key == _as_read(key) and file.pieces == layout.pieces


def _allocate(descriptor: int, num_bytes: int) -> None:
    """So that a full disk is known before anything is written, and by others."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, num_bytes)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
        else:
            return
    os.truncate(descriptor, num_bytes)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode("ascii")).hexdigest()[:DIGITS]


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
