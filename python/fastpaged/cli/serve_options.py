"""The options of `fastpaged serve` beside the engine's, each a field of ServerSettings: absent, its default holds."""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from fastpaged.server.settings import ServerSettings

_KEY_VARIABLE = "FASTPAGED_API_KEY"
_LISTS = ("served_model_names", "api_keys", "allowed_origins")

# Known from elsewhere, and not there: why.
_ABSENT = {
    "--enable-auto-tool-choice": "there are no tool calls yet",
    "--tool-call-parser": "there are no tool calls yet",
    "--reasoning-parser": "reasoning is not told from answering yet",
    "--lora-modules": "there are no adapters",
    "--enable-lora": "there are no adapters",
    "--middleware": "no code is loaded into the server by name; put a proxy before it",
    "--api-server-count": "one event loop serves the engine",
    "--tensor-parallel-size": "there is one worker",
    "--gpu-memory-utilization": "this engine runs on the CPU; see --kv-cache-memory-bytes",
    "--disable-uvicorn-access-log": "there is one line a request anyway; see --no-log-requests",
}


class _Absent(argparse.Action):
    """Says why there is no such option."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.error(f"{self.option_strings[0]} is not there: {self.help}")


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """REQUIRES: the parser leaves out what is absent (argument_default=argparse.SUPPRESS)."""
    group = parser.add_argument_group("server")
    group.add_argument("--host", metavar="ADDRESS", help="to listen on (default: 127.0.0.1; 0.0.0.0: all there are)")
    group.add_argument("--port", type=int, metavar="N", help="to listen on (default: 8000)")
    group.add_argument("--uds", metavar="PATH", help="a unix socket to listen on instead")
    group.add_argument(
        "--served-model-name", dest="served_model_names", nargs="+", metavar="NAME",
        help="what requests call the model; answers use the first (default: MODEL)",
    )  # fmt: skip
    group.add_argument("--root-path", metavar="PATH", help="what a proxy takes off the path before it gets here")
    group.add_argument("--chat-template", metavar="FILE", help="a Jinja template in place of the model's own")
    group.add_argument("--response-role", metavar="ROLE", help="of chat answers (default: assistant)")
    group.add_argument("--disable-fastapi-docs", dest="enable_docs", action="store_false", help="no /docs")
    group.add_argument(
        "--enable-force-include-usage", dest="force_include_usage", action="store_true",
        help="end every stream with the tokens used",
    )  # fmt: skip
    group.add_argument(
        "--enable-request-id-headers", action="store_true", help="answer with the request's id in X-Request-Id"
    )
    group.add_argument(
        "--sse-keep-alive-interval", type=float, metavar="S", help="a comment in silent streams (default: 0, none)"
    )
    _add_access(parser.add_argument_group("access"))
    _add_limits(parser.add_argument_group("limits"))
    _add_seen(parser.add_argument_group("seen"))
    for name, why in _ABSENT.items():
        parser.add_argument(name, action=_Absent, nargs="*", dest=argparse.SUPPRESS, help=argparse.SUPPRESS).help = why


def _add_access(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--api-key", dest="api_keys", nargs="+", metavar="KEY",
        help=f"open every route but /health to these keys alone (else: those of {_KEY_VARIABLE}, by commas)",
    )  # fmt: skip
    group.add_argument("--ssl-keyfile", metavar="FILE", help="for TLS, with --ssl-certfile")
    group.add_argument("--ssl-certfile", metavar="FILE", help="for TLS")
    group.add_argument(
        "--allowed-origins",
        nargs="+",
        metavar="ORIGIN",
        help="of browsers' pages that may read answers (default: none)",
    )


def _add_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--max-body-bytes", type=int, metavar="N", help="of a request (default: 2 MiB)")
    group.add_argument("--max-header-bytes", type=int, metavar="N", help="of a request (default: 32 KiB)")
    group.add_argument("--max-json-depth", type=int, metavar="N", help="of a request (default: 64)")
    group.add_argument("--max-connections", type=int, metavar="N", help="at a time (default: 4096)")
    group.add_argument("--read-timeout", type=float, metavar="S", help="for a request to come (default: 30)")
    group.add_argument("--send-timeout", type=float, metavar="S", help="of readers who take nothing (default: 120)")
    group.add_argument("--keep-alive-timeout", type=float, metavar="S", help="between two requests (default: 5)")
    group.add_argument("--max-request-seconds", type=float, metavar="S", help="the longest deadline (default: none)")
    group.add_argument(
        "--shutdown-timeout", type=float, metavar="S", help="for running requests at the end (default: 30)"
    )


def _add_seen(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--stall-threshold", type=float, metavar="S", help="/health: time without progress (default: 60)"
    )
    group.add_argument("--metrics-compat", choices=("vllm",), help="/metrics by that engine's names, too")
    group.add_argument("--otlp-traces-endpoint", metavar="URL", help="where spans go; needs fastpaged[otel]")
    group.add_argument("--no-log-requests", dest="log_requests", action="store_false", help="no line a request")


def server_settings(args: argparse.Namespace) -> ServerSettings:
    """As given. Raises InvalidRequestError naming the field."""
    from fastpaged.server.settings import ServerSettings

    given = vars(args)
    names = [field.name for field in dataclasses.fields(ServerSettings)]
    fields: dict[str, Any] = {name: given[name] for name in names if name in given}
    fields |= {name: tuple(given[name]) for name in _LISTS if name in given}
    if "api_keys" not in fields and os.environ.get(_KEY_VARIABLE):
        fields["api_keys"] = tuple(key.strip() for key in os.environ[_KEY_VARIABLE].split(","))
    if "chat_template" in given:
        fields["chat_template"] = _text_of("chat_template", given["chat_template"])
    return ServerSettings(**fields)


def _text_of(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{name} must be a text file, got {path!r}: {error}") from error
