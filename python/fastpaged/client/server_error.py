"""ServerError: what a server, or the way to it, made of a request."""

from __future__ import annotations

import json
from typing import Any

from fastpaged.errors import FastpagedError

_SHOWN = 500  # characters of a body that is no error message


class ServerError(FastpagedError):
    """The server refused a request, failed it, or could not be reached; the message says which. The request may be
    tried again."""


def check_event(event: dict[str, Any]) -> None:
    """ServerError if this event of a stream is one."""
    if event.get("error") is not None:
        raise ServerError(f"the server failed the request: {_message(event)}")


def refusal(status: int, body: bytes) -> ServerError:
    """Of an answer with another status than 200."""
    text = body.decode("utf-8", errors="replace").strip()
    try:
        said = _message(json.loads(text))
    except (ValueError, RecursionError):
        said = text
    said = " ".join(said.split())
    shown = said if len(said) <= _SHOWN else said[:_SHOWN] + "..."
    return ServerError(f"the server answered {status}{': ' if shown else ''}{shown}")


def _message(body: Any) -> str:
    """{"error": {"message": ...}}, {"error": "..."} and {"detail": "..."} are all in use."""
    if isinstance(body, dict):
        error = body.get("error", body.get("detail", body))
        if isinstance(error, dict) and isinstance(error.get("message"), str):
            return str(error["message"])
        return error if isinstance(error, str) else json.dumps(error)
    return json.dumps(body)
