"""A read-only memory map of a whole file, and the errors of opening one."""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastpaged.errors import ModelFormatError, ModelNotFoundError
from fastpaged.formats.file_kind import REGULAR_FILE, file_kind

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


class FileIdentity(NamedTuple):
    """Which file, in which state: whatever changes its bytes changes one of these."""

    path: str  # with every link followed
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, path: str, status: os.stat_result) -> FileIdentity:
        """path: where a file lies whose os.stat() is `status`."""
        return cls(os.path.realpath(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    def holds(self) -> bool:
        """Whether this file is still there as it was."""
        try:
            return FileIdentity.of(self.path, os.stat(self.path)) == self
        except OSError:
            return False


class MappedFile:
    """Bytes of a file. `view` hands out arrays that keep the mapping alive for as long as they live.

    They are the file itself: to read what another process has cut off since ends this process (SIGBUS). So nothing is
    handed out of a file whose size has changed, and whoever reads much later may ask once more, `check_unchanged`.
    What is cut off while it is being read cannot be caught: replace a model file by renaming, not by writing into it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        kind = file_kind(self.path)
        if kind not in (REGULAR_FILE, None):  # of None, opening it says why
            raise ModelNotFoundError(f"model: {self.path!r} cannot be read as a file: it is {kind}")
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                self.size = status.st_size
                self.identity = FileIdentity.of(self.path, status)
                if self.size:  # an empty file cannot be mapped
                    self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelNotFoundError(f"model: {self.path!r} cannot be read as a file: {error}") from None
        if self.size == 0:
            raise self.error("size", "a model file", "an empty file")
        if self.map[: len(_LFS_POINTER)] == _LFS_POINTER:
            found = "a pointer of git LFS: what it points at was never fetched, which `git lfs pull` does in its folder"
            raise self.error("content", "a model file", found)

    def view(self, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """The read-only bytes [offset, offset + size), which the caller has checked to lie in the file.

        Raises ModelFormatError if the file has changed its size.
        """
        self.check_unchanged()
        return np.frombuffer(self.map, dtype=np.uint8, count=size, offset=offset)

    def forget_pages(self) -> None:
        """Takes what was read out of this process's memory; the arrays stay, and read the file again where need be."""
        if hasattr(self.map, "madvise"):
            self.map.madvise(mmap.MADV_DONTNEED)

    def check_unchanged(self) -> None:
        """Raises ModelFormatError if the file has another size than when it was opened."""
        size = self.map.size()  # asks the system, each time
        if size != self.size:
            raise self.error(
                "size", f"{self.size} bytes, as when it was opened", f"{size}: it changed while it was read"
            )

    def error(self, what: str, expected: str, found: object) -> ModelFormatError:
        """The error to raise for something in this file."""
        return ModelFormatError(f"{self.path}: {what}: expected {expected}, found {found}")
