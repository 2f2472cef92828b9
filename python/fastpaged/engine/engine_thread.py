"""EngineThread: the one thread that an LLMEngine lives on, and how others reach it."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from fastpaged.engine.fault_trace import FaultTraces
from fastpaged.engine.heartbeat import Heartbeat, Progress
from fastpaged.errors import EngineClosedError, EngineDeadError, StepFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastpaged.engine.admission import EngineRequest
    from fastpaged.engine.llm_engine import LLMEngine
    from fastpaged.engine.mailbox import Mailbox, Postman
    from fastpaged.outputs import RequestOutput

    Command = Callable[[], None]

T = TypeVar("T")


class EngineThread:
    """Steps the engine while there is something to do and sleeps while there is not. Between two steps it carries out,
    in order, what other threads have asked for; every method here but _private ones may be called from any thread.

    A step that fails ends the requests that were in it, each with a StepFailedError at its reader, and is written down;
    the engine goes on, and so do the requests that waited. If even that fails the engine is dead, and says so to
    everybody. It is dead from the start in a forked child,
    whose process has no such thread: nothing there waits for it, or touches what may have been locked at the fork.
    """

    def __init__(self, engine: LLMEngine) -> None:
        """engine: this thread's from now on, to close too."""
        self.engine = engine
        self._death: EngineDeadError | None = None
        self._pid = os.getpid()
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._mailboxes: dict[str, Mailbox] = {}  # by request id, of unfinished requests
        self._deadline: float | None = None  # of shutdown, on time.monotonic()'s clock
        self._traces = FaultTraces(engine.config.fault_trace_dir)
        self._heart = Heartbeat(engine.clock, engine.num_ops_run)
        self._door = threading.Lock()  # held to close it, and to pass through it
        self._is_open = True
        self._thread = threading.Thread(target=self._run, name="fastpaged-engine", daemon=True)
        self._thread.start()

    @property
    def error(self) -> EngineDeadError | None:
        """Why it is dead; None while it lives."""
        if self._death is None and self._is_forked():
            return EngineDeadError(
                f"the engine's thread is in process {self._pid}, which made it, and not in this one: a forked child "
                "must make its own engine"
            )
        return self._death

    @property
    def is_running(self) -> bool:
        """Whether it takes requests."""
        return self._is_open and self.error is None

    @property
    def progress(self) -> Progress:
        """Whether it advances, at any moment: also in the middle of a step that never ends."""
        return Progress(len(self._mailboxes) + self._commands.qsize(), self._heart.age())

    def add(self, request: EngineRequest, mailbox: Mailbox, arrival_ns: int) -> None:
        """Queues a request that came at that time; its outputs, or why it was refused, go to the mailbox. For an
        unwanted one that is the output of an abort."""
        self._post(lambda: self._add(request, mailbox, arrival_ns))

    def abort(self, request_id: str, mailbox: Mailbox | None = None) -> None:
        """Ends a request before the next step; its mailbox gets a last output, "abort". Unknown ids are no error.
        mailbox: only if the id is still the request of this one."""
        if self.is_running:
            if self.progress.num_unfinished == 0:
                self._heart.beat()
            self._commands.put(lambda: self._abort(request_id, mailbox))

    def ask(self, question: Callable[[LLMEngine], T]) -> Future[T]:
        """Has something done to the engine between two steps. What comes of it, or why not, is in the future; a
        cancelled one is not begun."""
        future: Future[T] = Future()

        def command() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                if self._death is not None:
                    raise self._death
                future.set_result(question(self.engine))
            except Exception as error:
                future.set_exception(error)

        self._post(command)
        return future

    def shut_down(self, timeout: float) -> None:
        """No new requests; those in flight have `timeout` seconds to finish, and are aborted then. Returns when the
        engine is closed. Idempotent; a second call may shorten the time."""
        if self._is_forked():
            return  # the engine is the parent's to close
        with self._door:
            self._is_open = False
        deadline = time.monotonic() + timeout
        self._commands.put(lambda: self._set_deadline(deadline))
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def check_running(self) -> None:
        """Raises EngineDeadError or EngineClosedError if it takes no requests."""
        error = self.error
        if error is not None:
            raise error
        if not self._is_open:
            raise EngineClosedError("this engine is shut down; make a new one")

    def _is_forked(self) -> bool:
        return os.getpid() != self._pid

    def _post(self, command: Command) -> None:
        self.check_running()  # before the lock, which is of no use in a forked child
        with self._door:  # so that nothing comes behind the door's closing and is never seen
            self.check_running()
            if self.progress.num_unfinished == 0:
                self._heart.beat()  # what comes after an idle hour has not been waiting for one
            self._commands.put(command)

    # ---- on the engine's thread

    def _run(self) -> None:
        try:
            while self._carry_out_commands():
                self._step()
        except BaseException as error:  # whatever it was, everybody waiting must hear of it
            self._die(error)
        finally:
            self.engine.close()

    def _carry_out_commands(self) -> bool:
        """Waits for one if there is nothing else to do. Whether to go on."""
        while True:
            try:
                command = self._commands.get(block=not self._mailboxes and self._deadline is None)
            except queue.Empty:
                break
            command()
        if self._deadline is None:
            return True
        if time.monotonic() >= self._deadline:
            for request_id in list(self._mailboxes):
                self._abort(request_id, None)
        return bool(self._mailboxes)

    def _step(self) -> None:
        try:
            outputs = self.engine.step()
            self._heart.beat()
        except Exception as error:
            self._fail(error)
        else:
            self._send([(output.request_id, output) for output in outputs])

    def _add(self, request: EngineRequest, mailbox: Mailbox, arrival_ns: int) -> None:
        try:
            if self._death is not None:
                raise self._death
            self.engine.enqueue(request, arrival_ns=arrival_ns)
        except Exception as error:
            self._post_to(mailbox.postman, [(mailbox, error)])
        else:
            self._mailboxes[request.request_id] = mailbox
            if mailbox.is_unwanted:
                self._abort(request.request_id, mailbox)

    def _abort(self, request_id: str, mailbox: Mailbox | None) -> None:
        if request_id in self._mailboxes and mailbox in (None, self._mailboxes[request_id]):
            output = self.engine.abort_request(request_id)
            if output is not None:
                self._send([(request_id, output)])
            self._mailboxes.pop(request_id, None)

    def _fail(self, cause: Exception) -> None:
        """Ends the requests of the step that failed, or all if it had none yet: so that each failing step ends one.
        Those that finished in it are over for the engine, and their last outputs are lost: theirs it was, too."""
        blamed = set(self.engine.blamed())
        mine = [name for name in self._mailboxes if name in blamed or not self.engine.has_request(name)]
        mine = mine or list(self._mailboxes)
        path = self._traces.write(self.engine, cause, mine)
        logging.getLogger(__name__).error(
            "a step failed, and with it %s; %d other requests go on%s",
            ", ".join(mine) or "no request",
            len(self._mailboxes) - len(mine),
            "" if path is None else f". What is known: {path}",
            exc_info=cause,
        )
        if self.engine.stats is not None:
            self.engine.stats.num_failed_steps += 1
        for request_id in mine:
            self.engine.abort_request(request_id, reason="error")
            mailbox = self._mailboxes.pop(request_id, None)
            if mailbox is None:  # it went when its event loop was found to be gone
                continue
            error = StepFailedError(f"request {request_id!r} ended: a step of the engine failed ({cause!r})")
            error.__cause__ = cause
            self._post_to(mailbox.postman, [(mailbox, error)])

    def _set_deadline(self, deadline: float) -> None:
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)

    def _send(self, outputs: list[tuple[str, RequestOutput]]) -> None:
        """One letter a request, one wake-up an event loop."""
        by_postman: dict[Postman, list[tuple[Mailbox, RequestOutput | Exception]]] = {}
        for request_id, output in outputs:
            mailbox = self._mailboxes.get(request_id)
            if mailbox is not None:
                by_postman.setdefault(mailbox.postman, []).append((mailbox, output))
                if output.finished:
                    del self._mailboxes[request_id]
        for postman, letters in by_postman.items():
            self._post_to(postman, letters)

    def _post_to(self, postman: Postman, letters: list[tuple[Mailbox, RequestOutput | Exception]]) -> None:
        try:
            postman.send(letters)
        except RuntimeError:  # its event loop is closed: nobody will ever read there
            for request_id, mailbox in list(self._mailboxes.items()):
                if mailbox.postman is postman:
                    del self._mailboxes[request_id]
                    self.engine.abort_request(request_id)

    def _die(self, cause: BaseException) -> None:
        logging.getLogger(__name__).critical("the engine died", exc_info=cause)
        with self._door:
            self._death = EngineDeadError(f"the engine died: {cause!r}")
            self._death.__cause__ = cause
        mailboxes, self._mailboxes = self._mailboxes, {}
        for mailbox in mailboxes.values():
            self._post_to(mailbox.postman, [(mailbox, self._death)])
        while not self._commands.empty():  # what came too late to be refused at the door
            self._commands.get()()
