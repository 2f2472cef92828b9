"""CacheFolder: which files of a folder are packed weights, which of them are unfinished, and who may make one.

Whatever else lies there is somebody's own: it is not counted, and never removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpaged.weights.packed_file import PackedFile, UnusablePackedFileError, is_packed_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DIGITS = 16  # of each of the three digests in a name
SUFFIX = ".weights"
UNFINISHED_SUFFIX = ".part"
BEING_WRITTEN = "another process is writing them"
_STEM = rf"[0-9a-f]{{{DIGITS}}}(-[0-9a-f]{{{DIGITS}}}){{2}}"


@dataclass(frozen=True)
class CachedFile:
    """What is in the folder. source: the first model file. "?" is what the file does not say."""

    path: Path
    num_bytes: int
    last_used: float  # seconds since the epoch
    source: str
    dtype: str
    layout: str  # of the kernels' weights
    version: str  # of fastpaged


@dataclass(frozen=True)
class UnfinishedFile:
    """is_being_written: or else it was left by a process that ended."""

    path: Path
    num_bytes: int
    is_being_written: bool


class CacheFolder:
    """One folder, which need not be there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        """For its owner alone, where it is not there. Raises as check() does."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.check()

    def check(self) -> None:
        """Raises UnusablePackedFileError where others may put files into it, OSError where it is not there."""
        status = self.path.stat()
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UnusablePackedFileError(f"{self.path} may be written by others than user {os.geteuid()}")

    @contextlib.contextmanager
    def locked(self, *, wait: bool) -> Iterator[None]:
        """One process at a time makes room, makes a file, or removes what others left. Raises BlockingIOError where
        that is another one now, and this one should not wait."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise
            except OSError:  # a file system that locks no folders (NFS): names are claimed one by one all the same
                pass
            yield
        finally:
            os.close(descriptor)

    def files(self) -> list[CachedFile]:
        """Whole ones; the one that was not used for longest comes first."""
        found = []
        for path, status in self._named(SUFFIX):
            if is_packed_file(path):
                found.append(CachedFile(path, status.st_size, status.st_mtime, *_origin(path)))
        return sorted(found, key=lambda file: (file.last_used, file.path.name))

    def unfinished(self) -> list[UnfinishedFile]:
        """By name."""
        found = []
        for path, status in self._named(UNFINISHED_SUFFIX):
            with contextlib.suppress(OSError), _opened(path) as descriptor:
                found.append(UnfinishedFile(path, status.st_size, not _claimed(descriptor)))
        return sorted(found, key=lambda file: file.path.name)

    def remove_abandoned(self) -> int:
        """Unfinished files of processes that ended: nobody has them locked. How many bytes they had."""
        num_bytes = 0
        for path, status in self._named(UNFINISHED_SUFFIX):
            with contextlib.suppress(OSError), _opened(path) as descriptor:
                if _claimed(descriptor) and _is_at(path, descriptor):
                    path.unlink()
                    num_bytes += status.st_size
        return num_bytes

    def _named(self, suffix: str) -> Iterator[tuple[Path, os.stat_result]]:
        """Regular files whose names are ours."""
        pattern = re.compile(_STEM + re.escape(suffix))
        try:
            paths = [path for path in self.path.iterdir() if pattern.fullmatch(path.name)]
        except OSError:
            return
        for path in paths:
            with contextlib.suppress(OSError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    yield path, status


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[int]:
    """The descriptor of an unfinished file, locked while it is written; the file is gone at the end unless it has
    another name by then. Raises UnusablePackedFileError where somebody else writes it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UnusablePackedFileError(BEING_WRITTEN) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        with contextlib.suppress(OSError):
            if _is_at(path, descriptor):
                path.unlink()
        os.close(descriptor)


def rename(descriptor: int, path: Path, name: Path) -> None:
    """Of a file made by new_file(). Raises UnusablePackedFileError where somebody has taken it away meanwhile."""
    if not _is_at(path, descriptor):
        raise UnusablePackedFileError(f"{path} was removed while it was written")
    os.rename(path, name)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)  # to lock is to write, on some systems
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _claimed(descriptor: int) -> bool:
    """Until it is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _origin(path: Path) -> tuple[str, str, str, str]:
    """Source, dtype, layout and version."""
    try:
        key = PackedFile.open(path).key
    except (OSError, UnusablePackedFileError):
        key = {}
    sources, settings = key.get("sources"), key.get("settings")
    try:
        source = str(sources[0][0]) if isinstance(sources, list) else "?"
    except (LookupError, TypeError):
        source = "?"
    values = settings if isinstance(settings, dict) else {}
    return source, *(str(values.get(name, "?")) for name in ("dtype", "layout", "version"))  # type: ignore[return-value]
