"""A server that is told to end: nobody's answer is lost."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
from server.serving import running_server, server_process
from server.step_gate import RawClient, inner, until

from fastpaged.server.settings import ServerSettings

LONG = {"prompt": "The cat", "max_tokens": 400, "ignore_eos": True, "stream": True, "seed": 1}
OPTIONS = ("--isa", "scalar", "--num-threads", "1", "--num-blocks", "512", "--max-model-len", "512")


class Reader(threading.Thread):
    """One stream; `begun` once its first text has come."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.begun = threading.Event()
        self.events: list[str] = []
        self.start()

    def run(self) -> None:
        with httpx.stream("POST", f"{self.url}/v1/completions", json=LONG, timeout=120) as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    self.events.append(line[6:])
                    self.begun.set()

    @property
    def finish_reason(self) -> str:
        assert self.events[-1] == "[DONE]"
        reason: str = json.loads(self.events[-2])["choices"][0]["finish_reason"]
        return reason


def test_behaviour_29_sigterm_lets_all_streams_finish_and_takes_no_new_request(tiny_llama: Path) -> None:
    with server_process([str(tiny_llama), *OPTIONS]) as (process, url):
        readers = [Reader(url) for _ in range(32)]
        for reader in readers:
            assert reader.begun.wait(60)
        process.send_signal(signal.SIGTERM)
        answers = [httpx.get(f"{url}/health"), httpx.post(f"{url}/v1/completions", json=LONG)]
        while answers[0].status_code == 200:
            answers = [httpx.get(f"{url}/health"), httpx.post(f"{url}/v1/completions", json=LONG | {"max_tokens": 1})]
        assert answers[0].json()["status"] == "draining"
        assert answers[1].status_code == 503
        assert answers[1].headers["retry-after"]
        for reader in readers:
            reader.join(120)
        assert [reader.finish_reason for reader in readers] == ["length"] * 32
        assert process.wait(60) == 0


def test_behaviour_29_after_the_time_is_up_streams_end_with_what_they_have(tiny_llama: Path) -> None:
    with server_process([str(tiny_llama), *OPTIONS, "--shutdown-timeout", "0"]) as (process, url):
        reader = Reader(url)
        assert reader.begun.wait(60)
        process.send_signal(signal.SIGTERM)
        reader.join(60)
        assert reader.finish_reason == "abort"
        assert process.wait(60) == 0


def test_behaviour_29_a_second_signal_ends_them_at_once(tiny_llama: Path) -> None:
    with server_process([str(tiny_llama), *OPTIONS, "--shutdown-timeout", "3600"]) as (process, url):
        reader = Reader(url)
        assert reader.begun.wait(60)
        process.send_signal(signal.SIGTERM)
        while httpx.get(f"{url}/health").status_code == 200:
            pass
        process.send_signal(signal.SIGTERM)
        reader.join(60)
        assert reader.finish_reason == "abort"
        assert process.wait(60) == 0


def test_behaviour_29_a_request_whose_prompt_is_still_made_is_finished_too(tiny_llama: Path) -> None:
    with running_server(tiny_llama, ServerSettings(shutdown_timeout=600)) as server:
        begun, go_on = threading.Event(), threading.Event()
        encode = inner(server).tokenizer.encode

        def slow_encode(text: str, **options: Any) -> list[int]:
            begun.set()
            assert go_on.wait(60)
            return encode(text, **options)

        inner(server).tokenizer.encode = slow_encode  # type: ignore[method-assign]
        body = {"prompt": "a b " * 2000, "truncate_prompt_tokens": 9, "max_tokens": 4, "ignore_eos": True}
        client = RawClient(server.url, body)
        assert begun.wait(60)
        server.server.end()
        until(lambda: server.service.is_draining)
        go_on.set()
        assert b'"finish_reason":"length"' in client.read_until(b'"usage"')
        client.leave()
