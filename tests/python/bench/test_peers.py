"""Rounds over peers, with engines of a few lines behind the adapters' own protocol."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import peers
import pytest
from peer_process import Measured, PeerError, PeerProcess, PeerSpec
from peers_first_token import ColdAndWarm, measure_first_tokens, num_shared_tokens
from peers_report import OURS, Spread, WorkloadResult, metric_of
from workloads import Request

Start = Callable[..., PeerProcess]

ADAPTERS = Path(peers.__file__).with_name("peer_adapters")
REQUESTS = [Request(prompt=[5, 6, 7], out=3), Request(prompt=[9], out=2)]
# Its first token takes 4 s if it has forgotten what was before, and 1 s if not.
ENGINE = """
import sys, time
sys.path.insert(0, {adapters!r})
import adapter
class Engine(adapter.Engine):
    def prepare(self, requests):
        print("noise on stdout")
        return "an engine"
    def fresh(self):
        self.ttft_s = 4.0
    def run(self, requests):
        ttft_s, self.ttft_s = (getattr(self, "ttft_s", None), 1.0) if len(requests) == 1 else (None, 1.0)
        {body}
        return adapter.Run(0.5, ttft_s, [[token + 1 for token in range(r["out"])] for r in requests])
adapter.serve(Engine)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[PeerProcess] = []

    def start(name: str, body: str = "pass") -> PeerProcess:
        script = ENGINE.format(adapters=str(ADAPTERS), body=body)
        spec = PeerSpec(name, [sys.executable, "-c", script])
        started.append(PeerProcess(spec, tmp_path / f"{name}.log", start_seconds=300.0, run_seconds=300.0))
        return started[-1]

    yield start
    for peer in started:
        peer.close()


def state(peer: PeerProcess) -> str:
    assert peer._process is not None
    return Path(f"/proc/{peer._process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_peer_answers_and_is_stopped_while_others_run(start: Start) -> None:
    peer = start("peer")
    peer.prepare(REQUESTS)
    assert peer.description == "an engine"
    assert state(peer) == "T"
    assert peer.run(REQUESTS).tokens == [[1, 2, 3], [1, 2]]
    assert state(peer) == "T"


def test_a_peer_that_dies_is_named_with_its_last_words_and_can_be_started_again(start: Start) -> None:
    peer = start("peer", "if len(requests) == 1: sys.exit('no memory left')")
    peer.prepare(REQUESTS)
    with pytest.raises(PeerError, match="ended with status 1: no memory left"):
        peer.run(REQUESTS[:1])
    peer.prepare(REQUESTS)
    assert peer.run(REQUESTS).wall_s == 0.5


def test_a_peer_that_is_too_slow_is_ended(start: Start) -> None:
    peer = start("peer", "time.sleep(600 if len(requests) == 1 else 0)")
    peer.prepare(REQUESTS)
    peer._run_seconds = 1.0
    with pytest.raises(PeerError, match="not done in 1 s"):
        peer.run(REQUESTS[:1])
    assert peer._process is None


def test_an_answer_of_another_length_is_a_failure(start: Start) -> None:
    peer = start("peer", "requests = [dict(r, out=r['out'] + (r['out'] == 2)) for r in requests]")
    peer.prepare(REQUESTS)
    with pytest.raises(PeerError, match="request 1 has 3 tokens, not 2"):
        peer.run(REQUESTS)


def test_rounds_go_on_without_a_peer_that_fails_and_end_without_fastpaged(start: Start) -> None:
    ours, good, bad = start(OURS), start("good"), start("bad", "raise RuntimeError('cannot')")
    runs, failures = peers.run_rounds("w", REQUESTS, [ours, good, bad], 3)
    assert {name: len(of) for name, of in runs.items()} == {OURS: 3, "good": 3}
    assert failures == {"bad": "ended with status 1: RuntimeError: cannot"}
    with pytest.raises(SystemExit, match="fastpaged: ended with status 1: RuntimeError: cannot"):
        peers.run_rounds("w", REQUESTS, [start(OURS, "raise RuntimeError('cannot')")], 1)


SHARING = [Request(prompt=[*range(64), own, own], out=8) for own in (70, 80, 90)]


def test_first_tokens_are_measured_cold_and_then_warm_on_two_requests_that_begin_alike(start: Start) -> None:
    ours, bad = start(OURS), start("bad", "if len(requests) == 1: raise RuntimeError('cannot')")
    said: list[str] = []
    for peer in (ours, bad):
        peer.prepare(SHARING)
    found = measure_first_tokens(SHARING, [ours, bad], 2, said.append)
    assert found.runs == {OURS: [ColdAndWarm(4.0, 1.0)] * 2}
    assert found.failures == {"bad": "ended with status 1: RuntimeError: cannot"}
    assert (found.num_shared, found.num_own) == (64, 2)
    assert len(said) == 3
    text = found.markdown()
    assert "| an engine | 4000 [4000-4000] | 1000 [1000-1000] | 4.00 [4.00-4.00] x |" in text
    assert text.endswith("bad has no first tokens: ended with status 1: RuntimeError: cannot\n")


def test_prompts_share_what_all_of_them_begin_with_if_it_is_long_enough() -> None:
    assert num_shared_tokens(SHARING) == 64
    assert num_shared_tokens([*SHARING, Request(prompt=list(range(63)), out=1)]) == 0
    assert num_shared_tokens(SHARING[:1]) == 0
    assert num_shared_tokens(REQUESTS) == 0


def run(wall_s: float, ttft_s: float | None = None, tokens: tuple[int, ...] = (1, 2, 3)) -> Measured:
    return Measured(wall_s, ttft_s, [list(tokens)], 0.0)


def test_ratios_are_of_runs_of_one_round() -> None:
    requests = [Request(prompt=[1], out=3)]
    runs = {OURS: [run(1.0, 0.5), run(2.0, 1.0), run(4.0, 2.0)], "peer": [run(2.0, 1.0), run(8.0, 4.0), run(6.0, 2.0)]}
    result = WorkloadResult("w", requests, runs, {}, {OURS: "ours 1", "peer": "peer 2"}, limit=8.0)
    assert result.ratio("peer") == Spread(2.0, 2.0, 4.0)
    ours = result.as_dict()["engines"][OURS]
    assert ours["rates"] == [4.0, 2.0, 1.0]  # two tokens after the first
    assert ours["share_of_limit"] == 0.25
    table = result.markdown()
    assert "| peer 2 |" in table and "2.00 [2.00-4.00] x" in table


def test_what_is_above_the_limit_is_marked_and_warnings_are_told() -> None:
    requests, runs = [Request(prompt=[1], out=3)], {OURS: [run(1.0, 0.5)]}  # 4 tokens a second
    for limit, marked in ((4.0, False), (3.0, True)):
        result = WorkloadResult("w", requests, runs, {}, {OURS: "ours"}, limit, ["Not quiet."])
        assert ("133% (?)" in result.markdown()) == marked
        assert ("(?): above the limit" in result.markdown()) == marked
        assert result.markdown().endswith("Not quiet.\n")


@pytest.mark.parametrize("files", [[], ["config.json"], ["model.safetensors"]])
def test_a_model_that_peers_cannot_read_is_refused_in_one_line(
    tmp_path: Path, files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr(sys, "argv", ["peers.py", "--model", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        peers.arguments()
    assert "--model must be a folder with config.json and .safetensors files" in capsys.readouterr().err


def test_tokens_are_compared_up_to_the_first_that_differs() -> None:
    runs = {OURS: [run(1.0)], "same": [run(1.0)], "other": [run(1.0, tokens=(1, 2, 4))]}
    result = WorkloadResult("w", [Request(prompt=[1], out=3)], runs, {}, dict.fromkeys(runs, ""), limit=1.0)
    agreement = {name: engine["first_tokens_like_ours"] for name, engine in result.as_dict()["engines"].items()}
    assert agreement == {OURS: 3, "same": 3, "other": 2}


def test_a_workload_is_measured_by_what_it_is_about() -> None:
    one, long, many = [Request(prompt=[1] * 8, out=8)], [Request(prompt=[1] * 80, out=4)], REQUESTS
    assert [metric_of(requests).name for requests in (one, long, many)] == ["decode", "prefill", "output"]
    assert metric_of(long).of(long, run(3.0, 2.0)) == 40.0
    assert metric_of(many).of(many, run(2.5)) == 2.0
