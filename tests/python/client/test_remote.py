"""A server's answers as a caller reads them, and everything that a server may say or leave unsaid instead."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client.scripted import DONE, HEAD, Script, event_bytes, refuse, scripted_server, stream, text_event

from fastpaged.client.address import Address
from fastpaged.client.remote import Remote, finish_reason, new_text
from fastpaged.client.server_error import ServerError

ROUTE = "/v1/completions"


@contextlib.contextmanager
def remote_of(*scripts: Script) -> Iterator[Remote]:
    with scripted_server(*scripts) as server, Remote(Address.of(server.url)) as remote:
        yield remote


def test_events_come_as_they_were_sent_until_the_last() -> None:
    with remote_of(stream(text_event("a"), text_event("b", "stop"), DONE, text_event("never"))) as remote:
        events = list(remote.stream(ROUTE, {}))
    assert [(new_text(event), finish_reason(event)) for event in events] == [("a", None), ("b", "stop")]


def test_a_request_asks_for_a_stream_and_has_the_key() -> None:
    with scripted_server(stream(DONE)) as server, Remote(Address.of(server.url), "secret") as remote:
        assert list(remote.stream(ROUTE, {"prompt": "a"})) == []
    assert server.bodies == [{"prompt": "a", "stream": True}]
    assert "authorization: bearer secret" in server.heads[0].lower()


def test_closing_the_stream_closes_the_connection() -> None:
    gone = threading.Event()

    def until_gone(connection: socket.socket) -> None:
        connection.sendall(HEAD + event_bytes(text_event("a")))
        connection.settimeout(60)
        if connection.recv(1) == b"":
            gone.set()

    with remote_of(until_gone) as remote:
        events = remote.stream(ROUTE, {})
        assert new_text(next(events)) == "a"
        assert not gone.is_set()
        events.close()
        assert gone.wait(60)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (refuse(400, '{"error": {"message": "n must be\\n1"}}'), "the server answered 400: n must be 1"),
        (refuse(401, '{"error": "Unauthorized"}'), "the server answered 401: Unauthorized"),
        (refuse(404, '{"detail": "Not Found"}'), "the server answered 404: Not Found"),
        (refuse(500, "<html>oh</html>"), "the server answered 500: <html>oh</html>"),
        (refuse(502, ""), "the server answered 502"),
        (refuse(503, "x" * 1000), f"the server answered 503: {'x' * 500}..."),
        (refuse(500, '{"error": {"no": "message"}}'), 'the server answered 500: {"no": "message"}'),
        (stream({"error": {"message": "it fell"}}, DONE), "the server failed the request: it fell"),
        (stream(text_event("a")), "the answer broke off before its end"),
        (stream("no JSON"), "the server sent an event that is no JSON object: 'no JSON'"),
        (stream("[1]"), "the server sent an event that is no JSON object: '[1]'"),
    ],
)
def test_what_a_server_says_against_a_request_is_told(script: Script, message: str) -> None:
    with remote_of(script) as remote, pytest.raises(ServerError) as error:
        list(remote.stream(ROUTE, {}))
    assert str(error.value) == message


def test_a_connection_that_breaks_off_is_told() -> None:
    def break_off(connection: socket.socket) -> None:
        connection.sendall(HEAD.replace(b"Connection", b"Transfer-Encoding: chunked\r\nConnection") + b"5\r\nda")

    with remote_of(break_off) as remote, pytest.raises(ServerError, match="the connection to .* broke off: "):
        list(remote.stream(ROUTE, {}))


@pytest.mark.parametrize("body", ["{}", "[]", "no", '{"data": []}', '{"data": [{}]}', '{"data": [{"id": 1}]}'])
def test_a_server_that_names_no_model_is_told(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx

    def get(self: httpx.Client, url: str, **_: Any) -> httpx.Response:
        return httpx.Response(200, text=body)

    monkeypatch.setattr(httpx.Client, "get", get)
    with Remote(Address.of("http://a")) as remote, pytest.raises(ServerError, match="names no model"):
        remote.models()


def test_a_unix_socket_is_reached(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\n{"data": [{"id":"a"}]}')

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener, Remote(Address.of(f"unix:{path}")) as remote:
        assert remote.models() == [{"id": "a"}]
        thread.join(60)
