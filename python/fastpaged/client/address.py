"""Address: where a server is, from what people write."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from fastpaged.errors import InvalidRequestError

URL_HELP = "http://HOST:PORT of an OpenAI-compatible server (/v1 may follow), or unix:PATH of its socket"


@dataclass(frozen=True)
class Address:
    """base: the URL that routes like /v1/models are added to. uds: the unix socket to reach it by, if it has one."""

    base: str
    uds: str | None = None

    @classmethod
    def of(cls, url: str) -> Address:
        """InvalidRequestError if that is no address."""
        if url.startswith("unix:"):
            path = url.removeprefix("unix:")
            path = "/" + path.lstrip("/") if path.startswith("//") else path
            if not path:
                raise InvalidRequestError(f"--url must name the socket behind unix:, got {url!r}")
            return cls("http://localhost", path)
        full = url if "://" in url else f"http://{url}"
        try:
            parts = urlsplit(full)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # of a port that is none
            valid = False
        if not valid or parts.query or parts.fragment:
            raise InvalidRequestError(f"--url must be {URL_HELP}, got {url!r}")
        path = parts.path.rstrip("/")
        return cls(f"{parts.scheme}://{parts.netloc}{path.removesuffix('/v1')}")
