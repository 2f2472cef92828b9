"""A hub on this machine: the few requests that huggingface_hub makes to fetch files of a repository."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

REVISION = "0123456789abcdef0123456789abcdef01234567"
TAGGED = "f" * 40  # the commit that the tag v1 is at


class FakeHub:
    """repositories: "org/name" -> file name -> content. gated: names of those that need a login. tagged: the same as
    repositories, as they were at the tag v1."""

    def __init__(
        self,
        repositories: Mapping[str, Mapping[str, bytes]],
        gated: tuple[str, ...] = (),
        tagged: Mapping[str, Mapping[str, bytes]] | None = None,
    ) -> None:
        self.repositories = repositories
        self.tagged = tagged or {}
        self.gated = gated
        self.tokens: set[str | None] = set()  # what was given for Authorization
        self.fetched: list[str] = []  # names of the files that were asked for with GET
        self.endpoint = ""

    def answer(self, method: str, url: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers, body."""
        path = unquote(urlsplit(url).path).strip("/").split("/")
        is_api = path[:2] == ["api", "models"]
        repository = "/".join(path[2:4] if is_api else path[:2])
        rest = path[4:] if is_api else path[2:]
        if repository in self.gated:
            return 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": f"{repository} is gated: log in"}, b""
        is_tagged = rest[1:2] in (["v1"], [TAGGED])
        commit = TAGGED if is_tagged else REVISION
        files = (self.tagged if is_tagged else self.repositories).get(repository)
        if files is None:
            return 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b""
        if is_api and (not rest or rest[0] == "revision"):
            siblings = [{"rfilename": name} for name in files]
            return _json({"id": repository, "sha": commit, "siblings": siblings})
        if is_api and rest[0] == "tree":
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": _etag(content)}
                for name, content in files.items()
            ]
            return _json(entries)
        if rest[:2] == ["resolve", commit] and "/".join(rest[2:]) in files:
            name = "/".join(rest[2:])
            if method == "GET":
                self.fetched.append(name)
            headers = {"ETag": f'"{_etag(files[name])}"', "X-Repo-Commit": commit}
            return 200, headers, files[name]
        return 404, {"X-Error-Code": "EntryNotFound"}, b""


@contextmanager
def running(hub: FakeHub) -> Iterator[FakeHub]:
    """Serves it on a free port of this machine; `hub.endpoint` is where."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve("GET")

        def do_HEAD(self) -> None:
            self._serve("HEAD")

        def log_message(self, *_: object) -> None:
            pass

        def _serve(self, method: str) -> None:
            hub.tokens.add(self.headers.get("Authorization"))
            status, headers, body = hub.answer(method, self.path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if method == "GET":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _json(value: object) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
