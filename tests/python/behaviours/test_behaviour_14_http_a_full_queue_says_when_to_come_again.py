"""Elsewhere: requests wait without a limit behind an HTTP server that takes them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from server.serving import running_server
from server.step_gate import RawClient, StepGate, inner, until

ASK: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 5, "ignore_eos": True}


def test_behaviour_14_a_full_queue_is_a_503_that_says_when_to_come_again(tiny_llama: Path) -> None:
    with running_server(tiny_llama, max_num_seqs=1, max_num_queued_requests=2) as server:
        gate = StepGate(server)
        held = [RawClient(server.url, ASK)]
        until(lambda: inner(server).scheduler.num_running == 1)
        held += [RawClient(server.url, ASK) for _ in range(2)]
        until(lambda: len(server.service.calls) == 3)
        gate.let(1)
        until(lambda: server.engine.stats is not None and server.engine.stats.num_waiting == 2)
        refused = server.client.post("/v1/completions", json=ASK)  # in the middle of a step, which it does not wait for
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "ServiceUnavailableError"
        gate.open()
        for client in held:
            assert b'"finish_reason":"length"' in client.read_until(b'"usage"')
            client.leave()
        assert server.client.post("/v1/completions", json=ASK).status_code == 200
        metrics = server.client.get("/metrics").text
        assert 'admission_rejections_total{engine="0",model_name="tiny",reason="queue_full"} 1.0' in metrics


def test_behaviour_14_the_official_client_comes_again_by_itself(tiny_llama: Path) -> None:
    with (
        running_server(tiny_llama) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=2) as client,
    ):
        server.service.is_draining = True
        with pytest.raises(openai.InternalServerError) as caught:
            client.with_options(max_retries=0).completions.create(model="tiny", prompt="x")
        assert caught.value.status_code == 503
        tried = []
        check_open = server.service.check_open

        def check() -> None:
            tried.append(1)
            server.service.is_draining = len(tried) < 2
            check_open()

        server.service.check_open = check  # type: ignore[method-assign]
        assert client.completions.create(model="tiny", prompt="x").choices
        assert len(tried) == 2


@pytest.mark.parametrize("how", ["queue_timeout", "deadline"])
def test_behaviour_14_a_request_whose_time_is_up_in_the_queue_is_never_computed(tiny_llama: Path, how: str) -> None:
    with running_server(tiny_llama, max_num_seqs=1) as server:
        gate = StepGate(server)
        first = RawClient(server.url, ASK | {"max_tokens": 40})
        until(lambda: inner(server).scheduler.num_running == 1)
        clock = [inner(server).clock()]
        inner(server).clock.source = lambda: clock[0]
        late = RawClient(server.url, ASK | {how: 2.0})
        until(lambda: len(server.service.calls) == 2)
        gate.let(1)
        until(lambda: server.engine.stats is not None and server.engine.stats.num_waiting == 1)
        clock[0] += 2 * 10**9
        gate.open()
        answer = late.read_until(b'"usage"')
        assert b'"finish_reason":"abort"' in answer
        assert f'"stop_reason":"{how}"'.encode() in answer
        first.read_until(b'"usage"')
        until(lambda: server.engine.progress().num_unfinished == 0)
        assert server.engine.stats is not None
        assert server.engine.stats.expired[how] == 1
        assert server.engine.stats.prompt_tokens["computed"] == 3
        first.leave()
        late.leave()
