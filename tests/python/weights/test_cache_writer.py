"""Processes that end while packed weights are written, or before: nothing is left that a later one would use."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_tiny_llama
from weights.packed_runs import names, plain, run, the_file

from fastpaged.config import EngineConfig
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.errors import ModelFormatError
from fastpaged.weights import cache_writer
from fastpaged.worker.worker import Worker


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where packed weights are kept."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FASTPAGED_CACHE", str(folder))
    return folder


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model", tokenizer=False)


KILLED = """
import os, sys
from fastpaged.config import EngineConfig
from fastpaged.worker.worker import Worker

write = os.pwritev
def killed(*args):
    write(*args)
    os._exit(9)

os.pwritev = killed
Worker(EngineConfig(model=sys.argv[1], isa="scalar", num_threads=1, num_blocks=8)).close()
"""


def test_a_process_that_dies_while_it_writes_leaves_nothing_that_a_later_one_would_use(
    llama: Path, folder: Path
) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(llama)], check=False, timeout=60)
    assert done.returncode == 9
    assert the_file(folder).suffix == ".part"
    assert not run(llama)[1]
    assert the_file(folder).suffix == ".weights"
    assert run(llama) == (plain(llama), True)


@pytest.mark.parametrize("disk", ["slow", "stuck"])
def test_ctrl_c_while_close_waits_leaves_no_file_and_frees_the_model(
    disk: str, llama: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the disk answers only after close() has returned."""
    goes = threading.Event()
    write = os.pwritev

    def slow(*args: Any) -> int:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        assert goes.wait(60)
        return write(*args)

    monkeypatch.setattr(os, "pwritev", slow)
    monkeypatch.setattr(cache_writer, "_SECONDS_BEFORE_WRITING", 3600)
    monkeypatch.setattr(cache_writer, "_SECONDS_TO_STOP", 0.01 if disk == "stuck" else 60)
    worker = Worker(EngineConfig(model=str(llama), isa="scalar", num_threads=1, num_blocks=8))
    writer, graph = worker._cache_writer, weakref.ref(worker.graph)
    assert writer is not None
    stop = writer._stop

    def stop_and_answer() -> None:
        writer._should_stop = True
        goes.set()
        stop()

    if disk == "slow":
        monkeypatch.setattr(writer, "_stop", stop_and_answer)
    with pytest.raises(KeyboardInterrupt):
        worker.close()
    assert names(folder) == set()
    assert graph() is None
    worker.close()  # waits for no disk
    goes.set()
    assert writer._ended.wait(60)
    assert names(folder) == set()


def test_an_engine_that_cannot_start_writes_nothing_and_waits_for_nothing(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_writer, "_SECONDS_BEFORE_WRITING", 3600)
    model = write_tiny_llama(tmp_path / "model")
    (model / "tokenizer.json").write_text("{")
    config = EngineConfig(model=str(model), isa="scalar", num_threads=1, num_blocks=8)
    with pytest.raises(ModelFormatError):
        LLMEngine(config)
    assert names(folder) == set()


NOT_CLOSED = """
import os, sys, threading, time
from fastpaged.config import EngineConfig
from fastpaged.weights import cache_writer
from fastpaged.worker.worker import Worker

model, when, end = sys.argv[1:]
writing = threading.Event()
write = os.pwritev

def stuck(*args):
    write(*args)
    writing.set()
    time.sleep(3600)

os.pwritev = stuck
if when == "before":
    cache_writer._SECONDS_BEFORE_WRITING = 3600
worker = Worker(EngineConfig(model=model, isa="scalar", num_threads=1, num_blocks=8))
if when == "while":
    assert writing.wait(60)
    assert any(name.endswith(".part") for name in os.listdir(os.environ["FASTPAGED_CACHE"]))
if end == "fork":
    child = os.fork()
    if child == 0:
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    assert when == "before" or os.listdir(os.environ["FASTPAGED_CACHE"])
if end == "interrupted":
    raise KeyboardInterrupt
"""


@pytest.mark.parametrize("end", ["returns", "interrupted", "fork"])
@pytest.mark.parametrize("when", ["before", "while"])
def test_a_process_that_ends_without_close_waits_for_no_file_and_leaves_none(
    when: str, end: str, llama: Path, folder: Path
) -> None:
    """However long the disk takes, and whatever a forked child does."""
    done = subprocess.run([sys.executable, "-c", NOT_CLOSED, str(llama), when, end], check=False, timeout=60)
    assert (done.returncode == 0) == (end != "interrupted")
    assert names(folder) == set()


def test_where_no_thread_is_to_be_had_nothing_is_kept_and_serving_goes_on(
    llama: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = plain(llama)

    def refused(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch, caplog.at_level(logging.INFO):
        patch.setattr(threading.Thread, "start", refused)
        assert run(llama)[0] == expected
    assert "are not kept for the next start: can't start new thread" in caplog.text
    assert names(folder) == set()
    assert run(llama) == (expected, False)
    assert run(llama) == (expected, True)


def test_a_forked_child_waits_for_no_writer_and_writes_nothing(
    llama: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_writer, "_SECONDS_BEFORE_WRITING", 3600)
    worker = Worker(EngineConfig(model=str(llama), isa="scalar", num_threads=1, num_blocks=8))
    child = os.fork()
    if child == 0:
        try:
            worker.close()
            os._exit(len(names(folder)))
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    worker.close()
    assert len(names(folder)) == 1
