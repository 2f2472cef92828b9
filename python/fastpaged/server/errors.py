"""ApiError: a request that is answered with an error, and how every other error becomes one.

The body is {"error": {"message", "type", "param", "code"}}, as clients of OpenAI's API read it.
"""

from __future__ import annotations

import logging
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastpaged.errors import (
    EngineClosedError,
    EngineDeadError,
    InvalidRequestError,
    QueueOverflowError,
    StepFailedError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    422: "UnprocessableEntityError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}
_ARGUMENT = re.compile(r"(?!(?:an?|the) )([a-z_]+)(?:\[[^ :]*\])?(?::| .*\bmust\b)")
_RETRY_AFTER = "1"  # second: queues are short by then, or another answer says so
_NOT_AGAIN = {"X-Should-Retry": "false"}  # OpenAI's clients send again whatever ends in 5xx, unless they are told this


class ApiError(Exception):
    """status: of HTTP. param: the argument to blame. headers: beside the body."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.headers = {**(_NOT_AGAIN if status == HTTPStatus.NOT_IMPLEMENTED else {}), **(headers or {})}

    @property
    def body(self) -> dict[str, Any]:
        """Of the answer, and of an event in a stream that has begun."""
        kind = _TYPES.get(self.status) or HTTPStatus(self.status).phrase
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.status}}


def shutting_down() -> ApiError:
    """What whoever comes too late hears."""
    return ApiError(503, "the server is shutting down", headers={"Retry-After": _RETRY_AFTER})


def api_error(error: BaseException) -> ApiError:
    """What a client hears: all of its own mistakes, and of ours that there was one (the log has it)."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidRequestError):
        return ApiError(400, str(error), param=_argument_of(str(error)))
    if isinstance(error, QueueOverflowError):
        return ApiError(503, str(error), headers={"Retry-After": _RETRY_AFTER})
    if isinstance(error, EngineClosedError):
        return shutting_down()
    if isinstance(error, EngineDeadError):
        return ApiError(500, "the engine is dead; the server's log says why")
    if isinstance(error, StepFailedError):
        return ApiError(500, "a step of the engine failed, and this request with it; the server's log says why")
    logging.getLogger(__name__).error("an unexpected error", exc_info=error)
    return ApiError(500, "an unexpected error; the server's log says which")


def _argument_of(message: str) -> str | None:
    """Messages about an argument begin with its name or a place in it: "n must be ...", "messages[1]['role']: ..."."""
    found = _ARGUMENT.match(message)
    return found[1] if found is not None else None
