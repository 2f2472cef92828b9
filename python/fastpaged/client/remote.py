"""Remote: a server that answers as OpenAI's does, for one caller at a time."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import httpx

from fastpaged.client.server_error import ServerError, check_event, refusal
from fastpaged.client.sse import SseReader

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping
    from types import TracebackType

    from fastpaged.client.address import Address

_SECONDS_TO_CONNECT = 10.0
_DONE = "[DONE]"


class Remote:
    """Routes of a server. ServerError for all that goes wrong on the way and beyond it."""

    def __init__(self, address: Address, api_key: str | None = None) -> None:
        self._url = address.base
        self._client = httpx.Client(
            base_url=address.base,
            headers={
                "Accept-Encoding": "identity",
                **({} if api_key is None else {"Authorization": f"Bearer {api_key}"}),
            },
            # An answer may wait in the server's queue for long; whoever is tired of it presses Ctrl-C.
            timeout=httpx.Timeout(None, connect=_SECONDS_TO_CONNECT),
            transport=None if address.uds is None else httpx.HTTPTransport(uds=address.uds),
        )

    def __enter__(self) -> Remote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()

    def models(self) -> list[dict[str, Any]]:
        """The cards of the models that it serves."""
        with self._reached():
            response = self._client.get("/v1/models")
        if response.status_code != httpx.codes.OK:
            raise refusal(response.status_code, response.content)
        try:
            cards = [card for card in response.json()["data"] if isinstance(card["id"], str)]
        except (ValueError, LookupError, TypeError):
            cards = []
        if not cards:
            raise ServerError(f"{self._url}/v1/models names no model")
        return cards

    def stream(self, route: str, body: Mapping[str, Any]) -> Generator[dict[str, Any], None, None]:
        """The events of an answer as they come. Closing the iterator closes the connection, by which the server knows
        that nobody wants the rest."""
        reader = SseReader()
        with self._reached(), self._client.stream("POST", route, json={**body, "stream": True}) as response:
            if response.status_code != httpx.codes.OK:
                raise refusal(response.status_code, response.read())
            for chunk in response.iter_bytes():
                for data in reader.feed(chunk):
                    if data == _DONE:
                        return
                    yield _event(data)
        raise ServerError("the answer broke off before its end")

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError as error:
            raise ServerError(f"there is no server at {self._url}: {error}") from None
        except httpx.HTTPError as error:
            raise ServerError(f"the connection to {self._url} broke off: {error or type(error).__name__}") from None


def _event(data: str) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise ServerError(f"the server sent an event that is no JSON object: {data[:80]!r}")
    check_event(event)
    return event


def new_text(event: Mapping[str, Any]) -> str:
    """What an event of either route adds to the (first) answer."""
    choices = event.get("choices") or [{}]
    return choices[0].get("text") or (choices[0].get("delta") or {}).get("content") or ""


def finish_reason(event: Mapping[str, Any]) -> str | None:
    """Of the (first) answer, once it has ended."""
    choices = event.get("choices") or [{}]
    reason: str | None = choices[0].get("finish_reason")
    return reason
