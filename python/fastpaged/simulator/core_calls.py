"""What the core is told in place of real requests and of a real model's results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastpaged import _core
from fastpaged.engine.recorder import STOP
from fastpaged.simulator.replayed_paths import STOP_TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fastpaged.simulator.header import Header

Results = tuple[
    list[int], list[int], list[list[tuple[int, float]]]
]  # of update_rows(): tokens, failed rows, candidates


def scheduler_of(header: Header, **changes: Any) -> _core.Scheduler:
    """Made as the recorded one was, but for what is changed: arguments of Scheduler."""
    settings: dict[str, Any] = {
        **header.scheduler,
        "policy": _core.SchedulerPolicy(**header.policy),
        "costs": _core.PreemptionCosts(**header.costs),
    }
    return _core.Scheduler(**(settings | changes))


def add_request(
    scheduler: _core.Scheduler,
    group_id: int,
    prompt: Sequence[int],
    max_tokens: int,
    *,
    scored: bool = False,
    beams: dict[str, Any] | None = None,
    root: int | None = None,
    **options: Any,
) -> None:
    """A request that ends where STOP_TOKEN comes. options: of Scheduler.add()."""
    sampling = _core.SamplingParams(
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        seed=0,
        num_logprobs=None,
        num_prompt_logprobs=0 if scored else None,
        **(beams or {}),
    )
    scheduler.add(group_id, prompt, sampling, max_tokens, [STOP_TOKEN], cache_root=root_of(root), **options)


def root_of(number: int | None) -> str:
    """The salt that stands for a recorded one."""
    return "" if number is None else str(number)


def results_of(what: dict[str, Any], num_results: int) -> Results:
    """A recorded "update", as update_rows() takes it."""
    tokens = [0] * num_results
    for row, code in what.get("x", ()):
        tokens[row] = _token(code)
    return tokens, what.get("bad", []), candidates_of(what.get("beams", ()), num_results)


def candidates_of(beams: Iterable[tuple[int, int, float]], num_results: int) -> list[list[tuple[int, float]]]:
    """Of each row, best first; equal ones are in order already."""
    candidates: list[list[tuple[int, float]]] = [[] for _ in range(num_results)]
    for row, code, logprob in beams:
        candidates[row].append((_token(code), logprob))
    for of_row in candidates:
        of_row.sort(key=lambda candidate: -candidate[1])
    return candidates


def _token(code: int) -> int:
    return STOP_TOKEN if code == STOP else code
