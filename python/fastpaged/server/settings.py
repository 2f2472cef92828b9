"""ServerSettings: all that the server is told beside the engine's own configuration."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Literal

from fastpaged import param_checks as check
from fastpaged.errors import InvalidRequestError


@dataclass(frozen=True)
class ServerSettings:
    """How a server answers.

    host, port, uds: where it listens; a path of a unix socket goes before the others.
    served_model_names: what requests call the model; the first is what answers call it. Empty: the engine's `model`.
    api_keys: any of which opens every route; empty: they are open. /health is open always.
    allowed_origins: of browsers' pages that may read answers (CORS); empty: none.
    max_body_bytes, max_header_bytes, max_json_depth: of one request, which is refused beyond them.
    read_timeout: seconds within which the head of a request, and then its body, must have come.
    send_timeout: seconds after which a reader who takes nothing of an answer counts as gone.
    max_connections: at a time; one more is told 503 and closed.
    max_request_seconds: the longest deadline; requests that name none, or a later one, get it. None: there is none.
    shutdown_timeout: seconds that running requests have when the server is told to end.
    stall_threshold: seconds without progress after which running work counts as stalled.
    metrics_compat: "vllm" has /metrics call everything by that engine's names too.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    served_model_names: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None
    allowed_origins: tuple[str, ...] = ()
    root_path: str = ""
    max_body_bytes: int = 2 << 20
    max_header_bytes: int = 32 << 10
    max_json_depth: int = 64
    max_connections: int = 4096
    read_timeout: float = 30.0
    send_timeout: float = 120.0
    keep_alive_timeout: float = 5.0
    max_request_seconds: float | None = None
    shutdown_timeout: float = 30.0
    stall_threshold: float = 60.0
    chat_template: str | None = None  # the text of a template, instead of the model's
    response_role: str = "assistant"
    metrics_compat: Literal["vllm"] | None = None
    otlp_traces_endpoint: str | None = None
    sse_keep_alive_interval: float = 0.0  # seconds between comments in a stream with nothing to say; 0: none
    force_include_usage: bool = False
    enable_request_id_headers: bool = False
    enable_docs: bool = True
    log_requests: bool = True

    def __post_init__(self) -> None:
        check.integer("port", self.port, 0, 65535, "an integer from 0 to 65535")
        for name in ("max_body_bytes", "max_header_bytes", "max_connections"):
            check.integer(name, getattr(self, name), 1, 2**40, "an integer from 1 to 2**40")
        check.integer("max_json_depth", self.max_json_depth, 1, 500, "an integer from 1 to 500")
        for name in ("read_timeout", "send_timeout", "keep_alive_timeout", "stall_threshold"):
            _check_seconds(name, getattr(self, name), at_least=0.001)
        for name in ("shutdown_timeout", "sse_keep_alive_interval"):
            _check_seconds(name, getattr(self, name), at_least=0.0)
        if self.max_request_seconds is not None:
            _check_seconds("max_request_seconds", self.max_request_seconds, at_least=0.001)
        if self.metrics_compat not in (None, "vllm"):
            raise check.refusal("metrics_compat", self.metrics_compat, "None or 'vllm'")
        self._check_names()
        self._check_files()

    def _check_names(self) -> None:
        for field in ("served_model_names", "api_keys", "allowed_origins"):
            for place, value in enumerate(getattr(self, field)):
                if not isinstance(value, str) or not value.strip():
                    raise check.refusal(f"{field}[{place}]", value, "a string that is not blank")
        for place, key in enumerate(self.api_keys):
            if not key.isascii() or key != key.strip():
                raise check.refusal(f"api_keys[{place}]", "another", "ASCII with no space around it")
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise check.refusal("root_path", self.root_path, "empty, or begin with / and not end with it")

    def _check_files(self) -> None:
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise InvalidRequestError(
                "ssl_keyfile and ssl_certfile must be given together, got "
                f"{self.ssl_keyfile!r} and {self.ssl_certfile!r}"
            )
        for name in ("ssl_keyfile", "ssl_certfile"):
            path = getattr(self, name)
            if path is not None and not os.path.isfile(path):
                raise check.refusal(name, path, "a file that is there")
        if self.uds is not None:
            folder = os.path.dirname(os.path.abspath(self.uds))
            is_socket = os.path.exists(self.uds) and stat.S_ISSOCK(os.stat(self.uds).st_mode)
            if not os.path.isdir(folder) or (os.path.exists(self.uds) and not is_socket):
                raise check.refusal("uds", self.uds, "a path for a socket, in a folder that is there")


def _check_seconds(name: str, value: float, *, at_least: float) -> None:
    check.number(name, value, at_least, 1e9, f"a number of seconds from {at_least:g} to 1e9")
