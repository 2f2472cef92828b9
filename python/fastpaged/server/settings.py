"""ServerSettings: all that the server is told beside the engine's own configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
    max_body_bytes: int = 8 << 20
    max_header_bytes: int = 32 << 10
    max_json_depth: int = 64
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
    max_connections: int = 4096
    sse_keep_alive_interval: float = 0.0  # seconds between comments in a stream with nothing to say; 0: none
    force_include_usage: bool = False
    enable_request_id_headers: bool = False
    enable_docs: bool = True
    log_requests: bool = True
