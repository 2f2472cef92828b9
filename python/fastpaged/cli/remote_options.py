"""The options of every command that talks with a server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fastpaged.client.address import URL_HELP, Address
from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    import argparse

    from fastpaged.client.remote import Remote

API_KEY_VARIABLE = "FASTPAGED_API_KEY"


def add_remote_options(parser: argparse.ArgumentParser, *, required: bool) -> argparse._ArgumentGroup:
    """--url, --model and --api-key. Returns the group, for more of them."""
    group = parser.add_argument_group("server")
    group.add_argument("--url", required=required, metavar="URL", help=URL_HELP)
    group.add_argument(
        "--model", dest="served_model", metavar="NAME", help="as the server calls it (default: the first it serves)"
    )
    group.add_argument("--api-key", metavar="KEY", help=f"of the server (default: ${API_KEY_VARIABLE})")
    return group


def refuse_remote_options(args: argparse.Namespace) -> None:
    """InvalidRequestError if any was given without the URL."""
    for name, option in (("served_model", "--model"), ("api_key", "--api-key")):
        if name in args:
            raise InvalidRequestError(f"{option} must be given with --url, for it is about a server")


def api_key(args: argparse.Namespace) -> str | None:
    """As given, or of the environment."""
    return vars(args).get("api_key") or os.environ.get(API_KEY_VARIABLE) or None


def open_remote(args: argparse.Namespace) -> Remote:
    """The server that --url names."""
    address = Address.of(args.url)
    from fastpaged.client.remote import Remote

    return Remote(address, api_key(args))


def model_name(args: argparse.Namespace, remote: Remote) -> str:
    """What requests call the model."""
    return vars(args).get("served_model") or str(remote.models()[0]["id"])
