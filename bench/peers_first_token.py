"""How long the first token takes, cold and warm: of a request that comes alone, with an empty prefix cache, and of one
right after it that begins like it. What bench/peers.py adds where requests share a prefix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from peer_process import PeerError, PeerProcess
from peers_report import Spread
from workloads import Request

_LEAST_SHARED = 64  # tokens
_NUM_OUT = 4  # enough for a first token


@dataclass(frozen=True)
class ColdAndWarm:
    """Seconds to the first token of both requests of one round."""

    cold_s: float
    warm_s: float


@dataclass(frozen=True)
class FirstTokens:
    """Each engine's rounds, and why others have none. num_shared, num_own: tokens of the prompts."""

    num_shared: int
    num_own: int
    runs: Mapping[str, Sequence[ColdAndWarm]]
    failures: Mapping[str, str]
    descriptions: Mapping[str, str]

    def markdown(self) -> str:
        """A table, and a line for each peer that failed."""
        lines = [
            f"First token of a request of {self.num_shared} shared and {self.num_own} own tokens, alone:",
            "",
            "| engine | cold, ms | warm, ms | cold over warm |",
            "|---|---|---|---|",
        ]
        for name, pairs in self.runs.items():
            cold, warm = (Spread.of([1e3 * seconds for seconds in of]) for of in zip(*map(_both, pairs), strict=True))
            ratio = Spread.of([pair.cold_s / pair.warm_s for pair in pairs])
            lines.append(f"| {self.descriptions[name]} | {cold.text(0)} | {warm.text(0)} | {ratio.text(2)} x |")
        lines += ["", *(f"{name} has no first tokens: {reason}" for name, reason in self.failures.items())]
        return "\n".join(lines).rstrip() + "\n"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "num_shared": self.num_shared,
            "num_own": self.num_own,
            "engines": {name: [vars(pair) for pair in pairs] for name, pairs in self.runs.items()},
            "failures": dict(self.failures),
        }


def _both(pair: ColdAndWarm) -> tuple[float, float]:
    return pair.cold_s, pair.warm_s


def num_shared_tokens(requests: Sequence[Request]) -> int:
    """That all of several prompts begin with; 0 if too few to speak of."""
    if len(requests) < 2:
        return 0
    columns = zip(*(request["prompt"] for request in requests), strict=False)  # as many as the shortest prompt has
    count = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    return count if count >= _LEAST_SHARED else 0


def measure_first_tokens(
    requests: Sequence[Request], peers: Sequence[PeerProcess], rounds: int, say: Callable[[str], None]
) -> FirstTokens:
    """Of the first two requests, on peers that are prepared for all of them; in turn, as in bench/peers.py."""
    first, second = (Request(prompt=request["prompt"], out=_NUM_OUT) for request in requests[:2])
    runs: dict[str, list[ColdAndWarm]] = {peer.spec.name: [] for peer in peers}
    failures: dict[str, str] = {}
    for index in range(rounds):
        begin = index % len(peers)
        for peer in [*peers[begin:], *peers[:begin]]:
            name = peer.spec.name
            if name in failures:
                continue
            try:
                cold, warm = peer.run([first]).ttft_s, peer.run([second], warm=True).ttft_s
                if cold is None or warm is None:
                    raise PeerError("it does not say when the first token came")
            except PeerError as error:
                failures[name] = str(error)
                del runs[name]
                say(f"first token: {name} failed: {error}")
                continue
            runs[name].append(ColdAndWarm(cold, warm))
            say(f"first token: round {index + 1} of {rounds}: {name} {1e3 * cold:.0f} ms cold, {1e3 * warm:.0f} warm")
    num_shared = num_shared_tokens(requests)
    descriptions = {peer.spec.name: peer.description for peer in peers}
    return FirstTokens(num_shared, len(first["prompt"]) - num_shared, runs, failures, descriptions)
