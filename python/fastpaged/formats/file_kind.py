"""What lies at a path, asked before it is opened: to open a pipe or a device would wait for its writer, or worse."""

from __future__ import annotations

import os
import stat

REGULAR_FILE = "a regular file"
FOLDER = "a folder"
_KINDS = (
    (stat.S_IFREG, REGULAR_FILE),
    (stat.S_IFDIR, FOLDER),
    (stat.S_IFIFO, "a named pipe"),
    (stat.S_IFSOCK, "a socket"),
    (stat.S_IFCHR, "a character device"),
    (stat.S_IFBLK, "a block device"),
)


def file_kind(path: str | os.PathLike[str]) -> str | None:
    """In words, REGULAR_FILE and FOLDER among them, links followed; None for nothing, or nothing one may look at."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None
    return dict(_KINDS).get(stat.S_IFMT(mode), "no regular file")
