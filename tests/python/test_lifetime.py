"""Engines come and go: nothing is left behind, and two at a time know nothing of each other."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

from fastpaged import LLM, AsyncLLMEngine, CompletionOutput, EngineConfig, SamplingParams

PROMPTS = ["The cat", "Once upon a time there was", "x", "And then the other one"]
PARAMS = SamplingParams(temperature=0.9, seed=3, max_tokens=16, logprobs=2, ignore_eos=True)
SETTINGS: dict[str, Any] = {"isa": "scalar", "num_threads": 1, "num_blocks": 64}

# Every engine commits all of its 16 MB of KV memory, so that one that stayed behind would be seen.
CYCLES = """
import sys
from pathlib import Path
from fastpaged import LLM, AsyncLLMEngine, EngineConfig, SamplingParams

def resident_kib():
    fields = Path("/proc/self/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0])

def cycle(number):
    if number % 2:
        engine = AsyncLLMEngine(EngineConfig(model=sys.argv[1], isa="scalar", num_threads=1, num_blocks=4096))
        worker = engine._thread.engine.worker
    else:
        engine = LLM(sys.argv[1], isa="scalar", num_threads=1, num_blocks=4096)
        engine.generate(["The cat", "x"], SamplingParams(max_tokens=8, ignore_eos=True))
        worker = engine.engine.worker
    worker.kv_memory.fill_blocks(range(4096), 0)
    del worker
    engine.shutdown() if number % 2 else engine.close()

for number in range(20):
    cycle(number)
    print(resident_kib(), flush=True)
"""


def answers(llm: LLM) -> list[CompletionOutput]:
    return [output.outputs[0] for output in llm.generate(PROMPTS, PARAMS)]


def test_memory_stays_flat_over_twenty_engines(tiny_llama: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CYCLES, str(tiny_llama)], capture_output=True, text=True, check=True, timeout=300
    )
    resident = [int(line) for line in done.stdout.split()]
    assert len(resident) == 20
    assert resident[-1] - resident[5] < 4096  # KiB, over 14 engines


def test_an_async_engine_that_is_shut_down_has_freed_its_memory_though_somebody_keeps_it(tiny_llama: Path) -> None:
    engine = AsyncLLMEngine(EngineConfig(model=str(tiny_llama), **SETTINGS))
    memory = weakref.ref(engine._thread.engine.worker.kv_memory)
    gc.disable()
    try:
        engine.shutdown()
        assert memory() is None
    finally:
        gc.enable()


def test_a_closed_engine_and_its_tables_are_gone_with_its_last_name(tiny_llama: Path) -> None:
    """A circle would keep them until the garbage collector comes by."""
    llm = LLM(str(tiny_llama), **SETTINGS)
    llm.generate(PROMPTS, PARAMS)
    left = [weakref.ref(part) for part in (llm.engine, llm.engine.preemptions, llm.engine.worker, llm.engine.tokenizer)]
    gc.disable()
    try:
        llm.close()
        del llm
        assert [part() for part in left] == [None] * 4
    finally:
        gc.enable()


def test_two_engines_in_one_process_give_the_bits_they_give_alone(tiny_llama: Path) -> None:
    """One after the other, side by side in one thread, and in two threads at once."""
    with LLM(str(tiny_llama), **SETTINGS) as llm:
        alone = answers(llm)
    found: dict[int, list[CompletionOutput]] = {}
    with LLM(str(tiny_llama), **SETTINGS) as first, LLM(str(tiny_llama), **SETTINGS | {"block_size": 4}) as second:
        streams = [first.stream(PROMPTS[0], PARAMS), second.stream(PROMPTS[0], PARAMS)]
        pairs = list(zip(*streams, strict=True))
        assert [output.outputs[0] for output in pairs[-1]] == [alone[0], alone[0]]

        def run(index: int, llm: LLM) -> None:
            found[index] = answers(llm)

        threads = [threading.Thread(target=run, args=pair) for pair in enumerate((first, second))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {0: alone, 1: alone}
