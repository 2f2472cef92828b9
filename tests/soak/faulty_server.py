"""A server in which now and then a stage of one request's way fails: what `fastpaged serve` runs, with faults put in.

Each line on stdin that names a stage arms it: the next request that comes there fails. A line on stdout says so when it
has happened. The product knows nothing of this.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from fastpaged import AsyncLLMEngine, EngineArgs
from fastpaged.engine import output_processor
from fastpaged.engine.admission import Admission
from fastpaged.engine.llm_engine import LLMEngine
from fastpaged.server import usage
from fastpaged.server.run_server import listening_sockets, run_server
from fastpaged.server.settings import ServerSettings
from fastpaged.tokenizer import Tokenizer
from fastpaged.tokenizer.text_stream import ByteLevelTextStream
from fastpaged.worker.worker import Worker


class Faults:
    """Which stage is armed, and what happens there."""

    def __init__(self) -> None:
        self._armed: set[str] = set()
        self._lock = threading.Lock()

    def listen(self) -> None:
        for line in sys.stdin:
            with self._lock:
                self._armed.add(line.strip())

    def is_due(self, stage: str) -> bool:
        if stage not in self._armed:
            return False
        with self._lock:
            due = stage in self._armed
            self._armed.discard(stage)
        if due:
            print(stage, flush=True)
        return due

    def wrap(self, owner: Any, name: str, stage: str) -> None:
        works: Callable[..., Any] = getattr(owner, name)

        def method(*args: Any, **kwargs: Any) -> Any:
            if self.is_due(stage):
                raise RuntimeError(f"a fault put in at {stage}")
            return works(*args, **kwargs)

        setattr(owner, name, method)

    def spoil_logits(self) -> None:
        """One row of a step is NaN."""
        works = Worker.sample

        def sample(worker: Worker, batch: Any) -> Any:
            if len(batch.sample_rows) > 0 and self.is_due("logits"):
                worker.graph.output[0] = np.nan
            return works(worker, batch)

        Worker.sample = sample  # type: ignore[method-assign, assignment]


STAGES = ("tokenise", "admit", "enqueue", "logits", "text", "logprobs", "usage")


def main() -> None:
    faults = Faults()
    faults.wrap(Tokenizer, "encode", "tokenise")
    faults.wrap(Admission, "admit", "admit")
    faults.wrap(LLMEngine, "enqueue", "enqueue")
    faults.wrap(ByteLevelTextStream, "push", "text")
    faults.wrap(output_processor, "token_logprobs", "logprobs")
    faults.wrap(usage.Usage, "note", "usage")
    faults.spoil_logits()
    threading.Thread(target=faults.listen, daemon=True).start()
    model, port, num_blocks, num_threads = sys.argv[1:5]
    settings = ServerSettings(port=int(port), served_model_names=("soaked",), log_requests=False)
    sockets = listening_sockets(settings)
    arguments = EngineArgs(
        model, num_blocks=int(num_blocks), num_threads=int(num_threads), swap_space=0.05, disable_log_stats=False
    )
    run_server(AsyncLLMEngine.from_engine_args(arguments), settings, model, sockets)


if __name__ == "__main__":
    main()
