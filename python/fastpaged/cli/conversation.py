"""Conversation: what was said so far, and the loop that goes on with it."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from fastpaged.client.server_error import ServerError
from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    Message = dict[str, str]
    # Answers a conversation piece by piece; closed, it stops. AnswerFailedError if there will be no more of it.
    Answers = Callable[[list[Message]], Generator[str, None, None]]

EXIT_REQUEST_FAILED = 1
PROMPT = "> "
HELP = "/clear forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


class AnswerFailedError(Exception):
    """An answer failed after it had begun, by no fault of the message."""


class Conversation:
    """With whoever answers, a model in this process or one behind a server."""

    def __init__(self, answers: Answers, system: str | None) -> None:
        self._answers = answers
        self._first = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self._first)
        self._status = 0

    def talk(self, *, interactive: bool) -> int:
        """Until the input ends; returns the exit status. Someone at a terminal is told of a refused message and may go
        on; piped lines are not (InvalidRequestError, ServerError)."""
        if interactive:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  # lines can then be edited
            print(HELP, file=sys.stderr)
        while True:
            try:
                line = _read_line(interactive)
            except KeyboardInterrupt:
                if not interactive:
                    raise
                print(f"\n{HELP}", file=sys.stderr)
                continue
            if line is None or line.strip() == "/exit":
                return self._status
            if line.strip() == "/clear":
                self.messages = list(self._first)
            elif line.strip():
                try:
                    self.say(line)
                except (InvalidRequestError, ServerError) as error:
                    if not interactive:
                        raise
                    print(f"fastpaged: error: {' '.join(str(error).split())}", file=sys.stderr)

    def say(self, text: str) -> None:
        """Answers one message, and remembers both; a message that is refused or whose answer fails is forgotten. An
        answer that Ctrl-C stops is remembered as far as it was shown, if anything was."""
        messages = [*self.messages, {"role": "user", "content": text}]
        answer, failure, stopped = "", None, False
        try:
            with contextlib.closing(self._answers(messages)) as pieces:
                for piece in pieces:
                    sys.stdout.write(piece)
                    sys.stdout.flush()
                    answer += piece
        except KeyboardInterrupt:
            stopped = True
            print(" [stopped]", file=sys.stderr)
        except AnswerFailedError as error:
            failure = error
        except ServerError:
            if answer:
                print(flush=True)
            raise
        sys.stdout.write("\n")
        sys.stdout.flush()
        if failure is not None:
            self._status = EXIT_REQUEST_FAILED
            print(f"fastpaged: error: {failure}", file=sys.stderr)
        elif answer or not stopped:
            self.messages = [*messages, {"role": "assistant", "content": answer}]


def _read_line(interactive: bool) -> str | None:
    """Without its newline; None at the end of the input."""
    if sys.stdin is None:
        return None
    if interactive and sys.stdout.isatty():
        try:
            return input(PROMPT)
        except EOFError:
            print()
            return None
    if interactive:
        print(PROMPT, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return line.rstrip("\r\n") if line else None
