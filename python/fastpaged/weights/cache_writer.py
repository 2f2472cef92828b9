"""CacheWriter: writes the packed weights of one start to disk, beside an engine that serves already."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from typing import TYPE_CHECKING

from fastpaged.weights.packed_file import Layout, UnusablePackedFileError

if TYPE_CHECKING:
    from pathlib import Path

    from fastpaged.formats.mapped_file import MappedFile
    from fastpaged.weights.packed_cache import PackedCache, PackedKey
    from fastpaged.weights.packed_file import Kept

# The first request goes before: writing takes memory bandwidth.
_SECONDS_BEFORE_WRITING = 1.0
# What whoever wants it to stop is held up by a disk that does not answer.
_SECONDS_TO_STOP = 1.0
_LOWEST_PRIORITY = 19


class _WritingStoppedError(Exception):
    """Somebody asked to stop before the file was whole."""


class CacheWriter:
    """Writes one packed file on a thread of its own, at the lowest priority, a moment after it is made; holds the
    weights until then. Whatever prevents it is one line in the log, and nothing else. A process that ends first waits
    for no file and leaves none, unless it is killed."""

    def __init__(
        self, cache: PackedCache, key: PackedKey, kept: dict[str, Kept], model_files: tuple[MappedFile, ...]
    ) -> None:
        """model_files: which `kept` may be views of. Raises RuntimeError where the system refuses a thread."""
        self._kept = kept
        self._model_files = model_files
        self._process = os.getpid()
        self._should_start = threading.Event()
        self._should_stop = False
        # Not Thread.join(): one that Ctrl-C cuts short takes the thread for ended, in some versions of Python.
        self._ended = threading.Event()
        self._unfinished: Path | None = None
        thread = threading.Thread(target=self._run, args=(cache, key), name="fastpaged-cache-writer", daemon=True)
        thread.start()
        atexit.register(self._stop)

    @property
    def has_ended(self) -> bool:
        """Whether close() would return at once: the file is written, or will not be."""
        return self._ended.is_set() or os.getpid() != self._process

    def close(self) -> None:
        """Waits until the file is written, and lets go of the weights. Ctrl-C meanwhile leaves no file. After cancel(),
        and a second time, it waits for nothing."""
        try:
            self._should_start.set()
            if not self.has_ended and not self._should_stop:
                self._ended.wait()
        except BaseException:
            self.cancel()
            raise
        atexit.unregister(self._stop)

    def cancel(self) -> None:
        """Leaves no file, unless it is whole already, and lets go of the weights. Idempotent."""
        self._stop()
        atexit.unregister(self._stop)

    def _stop(self) -> None:
        """At exit, the thread, a daemon, gets no further than this."""
        if os.getpid() != self._process:  # a fork: thread and file are its parent's
            return
        self._should_stop = True
        self._should_start.set()
        try:
            self._ended.wait(_SECONDS_TO_STOP)
        finally:
            if self._unfinished is not None:
                with contextlib.suppress(OSError):  # finished or gone by now, as a rule
                    self._unfinished.unlink()

    def _watch(self, unfinished: Path) -> None:
        self._unfinished = unfinished
        if self._should_stop:
            raise _WritingStoppedError
        for file in self._model_files:
            file.forget_pages()

    def _run(self, cache: PackedCache, key: PackedKey) -> None:
        self._should_start.wait(_SECONDS_BEFORE_WRITING)
        _lower_priority()
        log = logging.getLogger(__name__)
        try:
            if self._should_stop:
                raise _WritingStoppedError
            path = cache.write(key, Layout(key.values, self._kept), self._watch)
            log.info("packed weights are kept in %s, for the next start", path)
        except _WritingStoppedError:
            pass
        except (OSError, UnusablePackedFileError) as error:
            log.info("packed weights are not kept for the next start: %s", error)
        finally:
            self._unfinished = None
            self._kept.clear()
            self._model_files = ()
            self._ended.set()


def _lower_priority() -> None:
    """Of this thread alone, which on Linux has a priority of its own."""
    if hasattr(os, "sched_getaffinity"):  # as only Linux has
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
