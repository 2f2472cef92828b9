"""What every adapter is: a process that loads one engine and replays requests on it, told to over stdin.

The caller (bench/peers.py) writes one JSON object a line, and reads one for each from what was stdout:

    -> {"prepare": requests}   load what these need, and run a few other tokens     <- {"engine": description}
    -> {"run": requests}       all at once: greedy, end-of-sequence ignored         <- {"wall_s", "ttft_s", "tokens"}
    -> {"run": requests, "warm": true}    the same, with what the run before it left in prefix caches

requests: [{"prompt": [token ids], "out": n}, ...]; tokens: the generated ids, by request; ttft_s: seconds to the first
token where there is one request, else null. Nothing of a run may be left to speed up the next, but a warm one. End of
input: the end.

Runs under the engine's own interpreter, so: the standard library and that engine, nothing of fastpaged's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Requests = list[dict[str, Any]]

_WARM_UP_REQUESTS = 16
_WARM_UP_TOKENS = 8
_SHARED_TOKENS = 64


@dataclass
class Run:
    """What one replay took, in seconds, and what it gave."""

    wall_s: float
    ttft_s: float | None
    tokens: list[list[int]]


class Engine(ABC):
    """A peer. The methods are called in this order: prepare, and then fresh and run again and again; before a warm run
    there is no fresh."""

    @abstractmethod
    def prepare(self, requests: Requests) -> str:
        """Makes ready for these requests; returns the engine's name and version and how it is set."""

    def fresh(self) -> None:  # noqa: B027 - most have nothing to forget
        """Forgets what earlier runs left: prefix caches."""

    @abstractmethod
    def run(self, requests: Requests) -> Run:
        """Replays the requests."""


def parser(description: str) -> argparse.ArgumentParser:
    """With the options that every adapter has."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--model", required=True, help="a folder in Hugging Face's layout")
    result.add_argument("--threads", type=int, required=True)
    return result


def serve(make: Callable[[], Engine]) -> None:
    """Answers until stdin ends. What the engine prints to stdout goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    engine = make()
    for line in sys.stdin:
        command = json.loads(line)
        if "prepare" in command:
            requests = command["prepare"]
            answer: dict[str, Any] = {"engine": engine.prepare(requests)}
            engine.run(warm_up(requests))
        else:
            if not command.get("warm", False):
                engine.fresh()
            run = engine.run(command["run"])
            answer = {"wall_s": run.wall_s, "ttft_s": run.ttft_s, "tokens": run.tokens}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def share_a_prefix(requests: Requests) -> bool:
    """Whether all of several prompts begin alike, for long enough that a prefix cache is of use."""
    first = requests[0]["prompt"][:_SHARED_TOKENS]
    return len(requests) > 1 and all(request["prompt"][:_SHARED_TOKENS] == first for request in requests)


def warm_up(requests: Requests) -> Requests:
    """The first requests, shortened and with other tokens: memory is committed and threads are awake afterwards."""
    highest = max(token for request in requests for token in request["prompt"])
    return [
        {"prompt": [(token * 7 + 11) % highest for token in r["prompt"]], "out": min(r["out"], _WARM_UP_TOKENS)}
        for r in requests[:_WARM_UP_REQUESTS]
    ]
