"""Sender: sends a load's requests over HTTP and times what comes back."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

from fastpaged.client.sample import SampleReader
from fastpaged.client.server_error import ServerError, refusal
from fastpaged.client.sse import SseReader
from fastpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    import aiohttp

    from fastpaged.client.address import Address
    from fastpaged.client.bench_request import BenchRequest
    from fastpaged.client.endpoint import Endpoint
    from fastpaged.client.sample import Sample

_SECONDS_TO_CONNECT = 60.0  # a server that is busy accepts late
_SECONDS_TO_KEEP = 2.0  # of a connection that is idle: less than servers wait, lest both use it and close it
_DONE = "[DONE]"


def check_installed() -> None:
    """InvalidRequestError if this installation cannot send a load."""
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise InvalidRequestError("bench serve needs aiohttp: pip install 'fastpaged[bench]'") from None


class Sender:
    """A context, of one event loop."""

    def __init__(self, address: Address, endpoint: Endpoint, common: Mapping[str, Any], api_key: str | None) -> None:
        """common: fields of every body."""
        self._address = address
        self._endpoint = endpoint
        self._common = {**common, "stream": True, "stream_options": {"include_usage": True}}
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"

    async def __aenter__(self) -> Sender:
        import aiohttp

        self._session = aiohttp.ClientSession(
            connector=self._connector(),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_SECONDS_TO_CONNECT),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._session.close()

    def _connector(self) -> aiohttp.BaseConnector:
        import aiohttp

        if self._address.uds is not None:
            return aiohttp.UnixConnector(self._address.uds, limit=0, keepalive_timeout=_SECONDS_TO_KEEP)
        return aiohttp.TCPConnector(limit=0, keepalive_timeout=_SECONDS_TO_KEEP)

    async def send(self, request: BenchRequest) -> Sample:
        """The answer, or why there is none."""
        import aiohttp

        body = json.dumps({**self._common, **self._endpoint.body(request)}).encode()
        reader = SampleReader(self._endpoint, time.perf_counter(), request.num_prompt_tokens)
        try:
            async with self._session.post(self._address.base + self._endpoint.route, data=body) as response:
                if response.status != 200:
                    raise refusal(response.status, await response.read())
                await self._read(response, reader)
        except (ServerError, aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            reader.sample.ended = time.perf_counter()
            reader.sample.error = str(error) or type(error).__name__
        return reader.sample

    @staticmethod
    async def _read(response: aiohttp.ClientResponse, reader: SampleReader) -> None:
        """To the very end, so that the connection can be used again."""
        events, is_done = SseReader(), False
        async for chunk in response.content.iter_any():
            now = time.perf_counter()
            for data in events.feed(chunk):
                is_done = is_done or data == _DONE
                if not is_done:
                    reader.take(now, data)
        if not is_done:
            raise ServerError("the answer broke off before its end")
