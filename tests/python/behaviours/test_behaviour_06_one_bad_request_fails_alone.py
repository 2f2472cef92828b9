"""Elsewhere: one bad request kills the engine, and with it everybody's answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from server.serving import Running, running_server
from server.step_gate import StepGate, inner, until

from fastpaged.engine import mailbox, output_processor
from fastpaged.engine.admission import Admission
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.server import chat_completions, completion_logprobs, usage
from fastpaged.tokenizer import Tokenizer
from fastpaged.worker.worker import Worker

POISONED: dict[str, Any] = {"prompt": "The cat sat", "max_tokens": 12, "seed": 9, "logprobs": 1, "ignore_eos": True}
QUIET: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 40, "ignore_eos": True, "temperature": 1.0}

# Stage -> where it is, in the order of a request's way: (owner, method).
STAGES: dict[str, tuple[Any, str]] = {
    "tokenising": (Tokenizer, "encode"),
    "admission": (Admission, "admit"),
    "queueing": (LLMEngine, "enqueue"),
    "detokenising": (Tokenizer, "text_stream"),
    "making logprobs": (output_processor, "token_logprobs"),
    "merging outputs": (mailbox, "merge_deltas"),
    "adding up the usage": (usage.Usage, "note"),
    "writing logprobs": (completion_logprobs.CompletionLogprobs, "body"),
}


class Speechless:
    """A text stream that fails with its second token."""

    def __init__(self) -> None:
        self._num_tokens = 0

    def push(self, token_id: int) -> str:
        self._num_tokens += 1
        if self._num_tokens == 2:
            raise RuntimeError("a fault put in")
        return "x"

    def finish(self) -> str:
        return ""


def is_the_companys(args: tuple[Any, ...]) -> bool:
    """Whether one of these is an output of a quiet request, or a list of them."""
    outputs = [output for arg in args for output in (arg if isinstance(arg, list) else [arg])]
    return any(getattr(output, "prompt_token_ids", None) == QUIET["prompt"] for output in outputs)


class FailsOnce:
    """Raises for the poisoned request alone, once it is armed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        works: Callable[..., Any] = getattr(owner, name)
        self.armed = False
        lock = threading.Lock()

        def method(*args: Any, **kwargs: Any) -> Any:
            with lock:
                fails = self.armed and not is_the_companys(args)
                self.armed = self.armed and not fails
            if not fails:
                return works(*args, **kwargs)
            if name == "text_stream":
                return Speechless()
            raise RuntimeError("a fault put in")

        monkeypatch.setattr(owner, name, method)


def quiet_answers(server: Running) -> list[list[int]]:
    return [
        server.client.post("/v1/completions", json=QUIET | {"seed": seed, "return_token_ids": True}).json()["choices"][
            0
        ]["token_ids"]
        for seed in range(3)
    ]


class Company:
    """Requests that are in the engine already when the poisoned one comes, and end after it."""

    def __init__(self, server: Running) -> None:
        self.gate = StepGate(server)
        self.found: list[list[int]] = [[], [], []]
        self._server = server
        self._threads = [threading.Thread(target=self._ask, args=(seed,)) for seed in range(3)]
        for thread in self._threads:
            thread.start()
        until(lambda: len(server.service.calls) == 3)
        self.let_all_in()

    def let_all_in(self) -> None:
        """By as few steps as that takes."""
        names = [name for ids in self._server.service.calls.values() for name in ids]
        while not all(inner(self._server).has_request(name) for name in names):
            done = self.gate.num_let + 1
            self.gate.let(1)
            until(lambda done=done: self.gate.num_let >= done)  # type: ignore[misc]

    def _ask(self, seed: int) -> None:
        with httpx.Client(base_url=self._server.url, timeout=60) as client:
            answer = client.post("/v1/completions", json=QUIET | {"seed": seed, "return_token_ids": True}).json()
        self.found[seed] = answer["choices"][0]["token_ids"]

    def answers(self) -> list[list[int]]:
        for thread in self._threads:
            thread.join()
        return self.found


def failed_in(server: Running, company: Company, body: dict[str, Any], happened: Callable[[], bool]) -> bool:
    """Whether it failed among the company, which does not end before it is there. happened: the fault has, already."""
    results: list[bool] = []
    asking = threading.Thread(target=lambda: results.append(failed(server, body)))
    asking.start()
    until(lambda: len(server.service.calls) == 4 or happened() or bool(results))
    until(lambda: happened() or bool(results) or server.engine.progress().num_unfinished == 4)
    company.gate.open()
    asking.join()
    return results[0]


def failed(server: Running, body: dict[str, Any]) -> bool:
    """Whether it was answered with an error of ours, by status or in its stream, in the shape of one."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        response = client.post("/v1/completions", json=body)
    if response.status_code == 200 and body.get("stream"):
        events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        error = json.loads(events[-2]).get("error")
        assert error is None or error["code"] == 500
        return error is not None
    assert response.status_code in (200, 500)
    return response.status_code == 500 and set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_behaviour_06_a_fault_on_one_request_s_way_fails_it_alone(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, stage: str, stream: bool
) -> None:
    owner, name = STAGES[stage]
    body = POISONED | {"stream": stream}
    with running_server(tiny_llama) as server:
        alone = quiet_answers(server)
        whole = server.client.post("/v1/completions", json=body).text
        fault = FailsOnce(monkeypatch, owner, name)
        company = Company(server)
        fault.armed = True
        assert failed_in(server, company, body, lambda: not fault.armed)
        assert not fault.armed
        assert company.answers() == alone
        again = server.client.post("/v1/completions", json=body).text
        assert texts(again, stream) == texts(whole, stream)
        assert server.client.get("/health").status_code == 200
        until(lambda: server.engine.progress().num_unfinished == 0)
        scheduler = inner(server).scheduler
        scheduler.check_invariants()
        assert scheduler.num_free_blocks == scheduler.num_blocks
        assert not server.service.calls


def texts(answer: str, stream: bool) -> str:
    if not stream:
        return str(json.loads(answer)["choices"][0]["text"])
    events = [line[6:] for line in answer.splitlines() if line.startswith("data: {")]
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


def test_behaviour_06_a_row_of_logits_that_is_no_number_fails_its_request_alone(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_server(tiny_llama) as server:
        alone = quiet_answers(server)
        works, spoilt = Worker.sample, [False]

        def sample(worker: Worker, batch: Any) -> Any:
            if len(batch.sample_rows) == 4 and not spoilt[0]:
                spoilt[0] = True
                worker.graph.output[3] = np.nan  # of the last that came
            return works(worker, batch)

        monkeypatch.setattr(Worker, "sample", sample)
        company = Company(server)
        assert failed_in(server, company, POISONED, lambda: spoilt[0])
        assert spoilt[0]
        assert company.answers() == alone


def test_behaviour_06_a_chat_template_that_fails_is_the_requests_matter(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_server(tiny_llama) as server:
        company = Company(server)
        company.gate.open()

        def broken(*_: Any, **__: Any) -> Any:
            raise RecursionError("a template's own")

        monkeypatch.setattr(chat_completions, "conversation_prompt", broken)
        body = {"messages": [{"role": "user", "content": "x"}]}
        assert server.client.post("/v1/chat/completions", json=body).status_code == 500
        assert company.answers() == quiet_answers(server)
