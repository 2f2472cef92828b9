"""Thousands of requests made up from the server's OpenAPI description, against a server on a small random model.

No answer may be a 500, and each error has OpenAI's shape. Prints how often each status came.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from server.api_fuzz import ApiFuzz
from server.serving import running_server
from tiny_model import write_tiny_llama


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=400, metavar="N", help="for each route that takes something")
    parser.add_argument("--seed", type=int, help="another choice of requests")
    parser.add_argument("--least", type=int, default=2000, metavar="N", help="requests that must have been made")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_server(write_tiny_llama(Path(folder))) as server:
        fuzz = ApiFuzz(server.url)
        fuzz.run(
            arguments.examples,
            lambda what: print(f"  {fuzz.statuses.total():6} requests; {what}", flush=True),
            arguments.seed,
        )
        health = server.client.get("/health")
        splits = server.client.get("/kv?blocks=false").json()["tiers"]["device"]["split"]
    print(f"{fuzz.statuses.total()} requests, by status: {dict(sorted(fuzz.statuses.items()))}")
    held = splits["num_slots"] - splits["free"] - splits["pinned"]
    print(f"/health: {health.json()}; slots held and not pinned: {held}")
    return 0 if health.status_code == 200 and fuzz.statuses.total() >= arguments.least else 1


if __name__ == "__main__":
    sys.exit(main())
