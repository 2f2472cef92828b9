"""StepProfile: where the time of an engine's steps goes, by phase."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastpaged import _core
    from fastpaged.engine.llm_engine import LLMEngine

# Phase -> (path from the engine to whoever carries it out, the method). In the order of a step.
_PHASES = {
    "schedule": ("scheduler", "schedule"),
    "copy blocks": ("worker.kv_memory", "copy"),
    "build batch": ("_executor._batch_builder", "build"),
    "forward": ("worker.graph", "run"),
    "sample": ("worker._sampler", "sample"),
    "update": ("scheduler", "update"),
    "process outputs": ("_outputs", "process"),
}
_OP_FIELDS = ("calls", "seconds", "limit_seconds", "weight_bytes", "kv_bytes", "activation_bytes", "flops")


class StepProfile:
    """Seconds by phase since attach(), over all steps; what is no phase of its own is "other".

    Costs an unprofiled engine nothing: attach() puts a clock around each part of this one engine.
    limits: of the machine on the engine's threads, which ops are held against; without them nothing limits an op.
    warnings: why these limits may be wrong, for whoever shows the profile.
    """

    def __init__(self, limits: _core.MachineLimits | None = None) -> None:
        self.limits = limits
        self.warnings: list[str] = []
        self.seconds: dict[str, float] = dict.fromkeys(_PHASES, 0.0)
        self.num_steps = 0
        self.total_seconds = 0.0
        self._graph: Any = None

    def attach(self, engine: LLMEngine) -> None:
        """From now on the engine overlaps no steps: each phase is to have its own time.

        REQUIRES: no profile is attached to this engine yet."""
        engine.overlaps_steps = False
        self._graph = engine.worker.graph
        self._graph.time_ops(self.limits)
        for phase, (path, method) in _PHASES.items():
            owner, name = _owner(engine, path)
            part = getattr(owner, name)
            if not isinstance(part, _Timed):
                part = _Timed(part)
                setattr(owner, name, part)
            part.time(method, self._clock(phase))
        step = engine.step

        def timed_step() -> Any:
            begin = time.perf_counter()
            outputs = step()
            self.total_seconds += time.perf_counter() - begin
            self.num_steps += 1
            return outputs

        engine.step = timed_step  # type: ignore[method-assign]

    def as_dict(self) -> dict[str, Any]:
        """num_steps, total_seconds, {phase: seconds}, and of "forward" {op: {"calls", "seconds", "limit_seconds",
        "weight_bytes", "kv_bytes", "activation_bytes", "flops"}}, all added up over the steps.

        limit_seconds beside the ops: of steps as a whole, whose weights and KV are read while they compute.
        """
        phases = dict(self.seconds)
        phases["other"] = max(0.0, self.total_seconds - sum(phases.values()))
        ops: dict[str, dict[str, Any]] = {}
        for times in self._graph.op_times:
            of_op = ops.setdefault(times.op, dict.fromkeys(_OP_FIELDS, 0))
            for name in _OP_FIELDS:
                of_op[name] += getattr(times, name)
        return {
            "num_steps": self.num_steps,
            "total_seconds": self.total_seconds,
            "limit_seconds": self._graph.runs_limit_seconds,
            "phases": phases,
            "ops": ops,
        }

    def _clock(self, phase: str) -> Callable[[float], None]:
        def add(seconds: float) -> None:
            self.seconds[phase] += seconds

        return add


class _Timed:
    """Stands where `part` stood, and is it in all but that some of its methods are timed."""

    def __init__(self, part: Any) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __len__(self) -> int:
        return len(self._part)

    def __contains__(self, item: object) -> bool:
        return item in self._part

    def time(self, method: str, add: Callable[[float], None]) -> None:
        run = getattr(self._part, method)

        def timed(*args: Any) -> Any:
            begin = time.perf_counter()
            result = run(*args)
            add(time.perf_counter() - begin)
            return result

        setattr(self, method, timed)


def _owner(engine: LLMEngine, path: str) -> tuple[Any, str]:
    *owners, name = path.split(".")
    owner: Any = engine
    for step in owners:
        owner = getattr(owner, step)
    return owner, name
