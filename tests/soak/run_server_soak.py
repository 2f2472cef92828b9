"""Minutes of a server under pressure: 64 clients of every kind, faults put in, nothing lost.

Every answer that nobody disturbed equals its offline twin; each fault costs one request at most; /health is right all
the time; in the end every block is free, and memory has stayed flat. The loopback only.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from faulty_server import STAGES  # noqa: E402
from soak_client import SoakClient  # noqa: E402
from soak_requests import answer_offline, make_requests  # noqa: E402

from fastpaged import LLM  # noqa: E402

MOST_GROWTH_KIB = 12 * 1024  # of the server's memory, from the second third to the last


class Soak:
    """One server process, and all that happens to it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.requests = make_requests(arguments.kinds, arguments.seed)
        self.counts: Counter[str] = Counter()
        self.fired: Counter[str] = Counter()
        self.resident: list[int] = []
        self.over = False
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = int(probe.getsockname()[1])

    async def run(self) -> None:
        with LLM(self.arguments.model, num_threads=self.arguments.threads) as llm:
            answer_offline(llm, self.requests)
        print(f"{len(self.requests)} requests answered offline", flush=True)
        command = [sys.executable, str(HERE / "faulty_server.py"), self.arguments.model, str(self.port)]
        sizes = [str(self.arguments.num_blocks), str(self.arguments.threads)]
        process = subprocess.Popen([*command, *sizes], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            timeout = aiohttp.ClientTimeout(total=300)
            connector = aiohttp.TCPConnector(limit=0)
            url = f"http://127.0.0.1:{self.port}"
            async with aiohttp.ClientSession(url, timeout=timeout, connector=connector) as session:
                await self._until_up(session, process)
                await self._soak(session, process)
                await self._check_end(session)
            process.terminate()
            assert await asyncio.to_thread(process.wait, 60) == 0, "the server did not end well"
        finally:
            process.kill()

    async def _soak(self, session: aiohttp.ClientSession, process: subprocess.Popen[str]) -> None:
        reading = asyncio.create_task(asyncio.to_thread(self._read_fired, process))
        faults = asyncio.create_task(self._put_in_faults(process))
        watch = asyncio.create_task(self._watch(session, process))
        clients = [
            asyncio.create_task(self._client(SoakClient(session, self.requests, self.counts, number)))
            for number in range(self.arguments.clients)
        ]
        done, _ = await asyncio.wait({*clients, watch}, timeout=self.arguments.seconds, return_when="FIRST_EXCEPTION")
        for task in done:
            task.result()
        self.over = True
        faults.cancel()
        await asyncio.gather(*clients, watch)
        reading.cancel()

    async def _client(self, client: SoakClient) -> None:
        while not self.over:
            await client.ask()

    async def _put_in_faults(self, process: subprocess.Popen[str]) -> None:
        rng = random.Random(self.arguments.seed)
        assert process.stdin is not None
        while True:
            await asyncio.sleep(self.arguments.fault_every)
            process.stdin.write(rng.choice(STAGES) + "\n")
            process.stdin.flush()

    def _read_fired(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.fired[line.strip()] += 1

    async def _watch(self, session: aiohttp.ClientSession, process: subprocess.Popen[str]) -> None:
        begin = told = time.monotonic()
        while not self.over:
            await asyncio.sleep(1.0)
            async with session.get("/health") as response:
                body = await response.json()
                assert response.status == 200, f"/health said {response.status} {body}"
            await self._check_metrics(session)
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
            self.resident.append(int(status.split("VmRSS:")[1].split()[0]))
            if time.monotonic() - told >= 15:
                told = time.monotonic()
                print(f"{told - begin:5.0f} s  {self._told()}", flush=True)

    def _told(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        return f"{counts}; faults {self.fired.total()}; {self.resident[-1]} KiB"

    async def _check_metrics(self, session: aiohttp.ClientSession) -> dict[str, float]:
        found: dict[str, float] = {}
        async with session.get("/metrics") as response:
            for family in text_string_to_metric_families(await response.text()):
                for sample in family.samples:
                    found[sample.name] = found.get(sample.name, 0.0) + sample.value
        return found

    async def _until_up(self, session: aiohttp.ClientSession, process: subprocess.Popen[str]) -> None:
        while True:
            assert process.poll() is None, "the server did not start"
            try:
                async with session.get("/health"):
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.1)

    async def _check_end(self, session: aiohttp.ClientSession) -> None:
        metrics = await self._check_metrics(session)
        while metrics["fastpaged:num_requests_running"] + metrics["fastpaged:num_requests_waiting"] > 0:
            await asyncio.sleep(0.1)  # those whose clients have left in the end
            metrics = await self._check_metrics(session)
        async with session.get("/kv?blocks=false") as response:
            seen: dict[str, Any] = await response.json()
        for name, tier in seen["tiers"].items():
            assert tier["split"]["free"] == tier["split"]["num_slots"], f"{name}: {tier['split']}"
        assert seen["requests"] == []
        started = metrics["fastpaged:requests_started_total"]
        assert started == metrics["fastpaged:request_success_total"], "a request was started and never finished"
        counts = self.counts
        ended = sum(counts[name] for name in ("right", "left", "aborted", "failed"))
        assert ended == counts["asked"], f"{counts}: an answer is missing"
        assert counts["failed"] <= self.fired.total(), f"{counts['failed']} failed, of {self.fired.total()} faults"
        third = len(self.resident) // 3
        growth = int(statistics.median(self.resident[-third:]) - statistics.median(self.resident[third : 2 * third]))
        print(f"end    {self._told()}; preempted {metrics['fastpaged:num_preemptions_total']:.0f} times; ", end="")
        print(f"memory grew by {growth} KiB from the second third to the last; faults by stage {dict(self.fired)}")
        assert growth < MOST_GROWTH_KIB, f"{growth} KiB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--kinds", type=int, default=300, help="different requests")
    parser.add_argument("--num-blocks", type=int, default=200, help="of 16 tokens: about half of what is asked for")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fault-every", type=float, default=5.0, metavar="S")
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(Soak(parser.parse_args()).run())
    print("nothing was lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
