"""RequestBody: a body is read whole, and is JSON of a reasonable size and depth, before any route sees it."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from fastpaged.server.ascii_json import AsciiJSONResponse
from fastpaged.server.client_watch import ClientGoneError
from fastpaged.server.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from fastpaged.server.settings import ServerSettings

_NO_BRACKETS = re.compile(r'"[^"]*"?|[^"\[\]{}]+')  # strings, and what is no bracket; it never goes back
_MOST_FIELDS = 1024
_MOST_NESTED = 4096  # texts, messages, prompts
_WITH_BODY = ("POST", "PUT", "PATCH")


class RequestBody:
    """An ASGI middleware. Refuses with ApiError's answer: a body too large (413), too slow (408), no JSON, no UTF-8,
    too deep, or with a number that is none (400)."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Of ASGI."""
        if scope["type"] != "http" or scope["method"] not in _WITH_BODY:
            await self._app(scope, receive, send)
            return
        try:
            body = await asyncio.wait_for(self._read(dict(scope["headers"]), receive), self._settings.read_timeout)
            check_json(body, self._settings.max_json_depth)
        except ClientGoneError:
            return
        except asyncio.TimeoutError:
            error = ApiError(408, f"the body must come within {self._settings.read_timeout:g} s")
            await _refusal(error)(scope, receive, send)
        except ApiError as error:
            await _refusal(error)(scope, receive, send)
        else:
            await self._app(scope, _Replayed(body, receive), send)

    async def _read(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        most = self._settings.max_body_bytes
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json" and not (kind.startswith(b"application/") and kind.endswith(b"+json")):
            raise ApiError(400, f"Content-Type must be application/json, got {kind.decode('latin-1')!r:.80}")
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding != b"identity":
            raise ApiError(415, f"Content-Encoding must be left out, got {encoding.decode('latin-1')!r:.80}")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > most:
            raise ApiError(413, f"the body must be at most {most} bytes, got {int(length[:20])}")
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise ApiError(413, f"the body must be at most {most} bytes")
            if not message.get("more_body", False):
                return b"".join(parts)


class _Replayed:
    """The body as one message, then what else comes."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def check_json(body: bytes, max_depth: int) -> None:
    """ApiError unless it is JSON, no deeper than this, with numbers that are some."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ApiError(
            400, f"the body must be UTF-8, got the byte 0x{body[error.start]:02x} at {error.start}"
        ) from None
    _check_depth(text, max_depth)
    try:
        found = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole)
        _check_sizes(found)
    except ApiError:
        raise
    except ValueError as error:
        raise ApiError(400, f"the body must be JSON: {error}") from None


def _check_depth(text: str, most: int) -> None:
    """Brackets in strings count as none."""
    if text.count("[") + text.count("{") <= most:
        return
    plain = text.replace("\\\\", "").replace('\\"', "")  # the quotes that are left begin and end strings
    brackets = np.frombuffer(_NO_BRACKETS.sub("", plain).encode("ascii"), dtype=np.uint8)
    opens = (brackets == ord("[")) | (brackets == ord("{"))
    if np.cumsum(np.where(opens, 1, -1)).max(initial=0) > most:
        raise ApiError(400, f"the body's JSON must be at most {most} levels deep")


def _check_sizes(value: object) -> None:
    """Of the fields of the body and of the lists in them: each item of which is looked at several times."""
    if not isinstance(value, dict):
        return
    if len(value) > _MOST_FIELDS:
        raise ApiError(400, f"the body must have at most {_MOST_FIELDS} fields, got {len(value)}")
    for name, field in value.items():
        is_long = isinstance(field, list) and len(field) > _MOST_NESTED
        if is_long and not all(isinstance(item, int) for item in field):
            raise ApiError(
                400, f"{name:.100} must hold at most {_MOST_NESTED} items, got {len(field)}", param=name[:100]
            )


def _refuse_constant(name: str) -> NoReturn:
    raise ApiError(400, f"the body must be JSON, which has no {name}")


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0.0:
        raise ApiError(400, f"the body's numbers must be finite, got {text:.40}")
    return value


def _whole(text: str) -> int:
    if len(text) > 40:
        raise ApiError(400, f"the body's whole numbers must have at most 40 digits, got {len(text)}")
    return int(text)


def _refusal(error: ApiError) -> AsciiJSONResponse:
    """And hangs up: what is left of the body is not read."""
    return AsciiJSONResponse(error.body, error.status, {"Connection": "close"})
