"""Header: a recording's first event, held against what this version's scheduler can be made with.

Nothing is allocated before: a damaged number is told, not tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastpaged import _core
from fastpaged.engine.recorder import fields_of
from fastpaged.engine.recording_file import FORMAT

if TYPE_CHECKING:
    from collections.abc import Mapping

# What a replay takes on: far above what an engine has, and still made in seconds.
MAX_BLOCKS = 2**22
MAX_BLOCK_SIZE = 256
_MAX_SEQS = 2**20
_MAX_MODEL_LEN = 2**24
_MAX_INT = 2**31 - 1

# Of Scheduler: arguments that a header must have, and those that it may have, with their least and greatest values.
_NEEDED = {
    "num_blocks": (1, MAX_BLOCKS),
    "block_size": (1, MAX_BLOCK_SIZE),
    "max_num_seqs": (1, _MAX_SEQS),
    "max_num_batched_tokens": (1, _MAX_INT),
    "max_model_len": (2, _MAX_MODEL_LEN),
}
_OPTIONAL = {
    "max_num_rows": (0, _MAX_INT),
    "num_host_blocks": (0, MAX_BLOCKS),
    "max_pinned_blocks": (0, MAX_BLOCKS),
    "prefix_hash_mask": (0, 2**64 - 1),
    "max_cache_events": (0, _MAX_INT),
}
_FLAGS = ("prefix_caching", "host_prefix_tier")
_NAMES = ("version", "model", "block_bytes", "scheduler", "policy", "costs")


@dataclass(frozen=True)
class Header:
    """How the scheduler was made that was recorded: arguments of Scheduler, SchedulerPolicy and PreemptionCosts.
    block_bytes: of a KV block; version: of fastpaged."""

    version: str
    model: str
    block_bytes: int
    scheduler: dict[str, Any]
    policy: dict[str, Any]
    costs: dict[str, float]

    @property
    def max_prompt(self) -> int:
        """Tokens that no request's prompt and no pin of such an engine is longer than."""
        size = int(self.scheduler["block_size"])
        longest_request = min(int(self.scheduler["max_model_len"]), int(self.scheduler["num_blocks"]) * size)
        return max(longest_request, (int(self.scheduler.get("max_pinned_blocks", 0)) + 1) * size)


def header_of(what: Mapping[str, Any]) -> Header:
    """Raises ValueError, saying what is wrong."""
    if what.get("format") != FORMAT:
        raise ValueError(f"a recording must be of format {FORMAT}, got {what.get('format')!r:.40}")
    missing = [name for name in _NAMES if name not in what]
    if missing:
        raise ValueError(f"the header of a recording has {', '.join(missing)}")
    header = Header(**{name: what[name] for name in _NAMES})
    for name in ("version", "model"):
        _require(isinstance(what[name], str), name, "a text", what[name])
    _require_between(0, 2**63 - 1, "block_bytes", header.block_bytes)
    _check_scheduler(header.scheduler)
    _check_fields("policy", header.policy, fields_of(_core.SchedulerPolicy()))
    _check_fields("costs", header.costs, fields_of(_core.PreemptionCosts()))
    return header


def _check_scheduler(settings: object) -> None:
    ranges = _NEEDED | _OPTIONAL
    known = _known("scheduler", settings, (*ranges, *_FLAGS))
    missing = [name for name in _NEEDED if name not in known]
    if missing:
        raise ValueError(f"the header's scheduler has {', '.join(missing)}")
    for name, value in known.items():
        if name in _FLAGS:
            _require(isinstance(value, bool), f"scheduler.{name}", "true or false", value)
        else:
            _require_between(*ranges[name], f"scheduler.{name}", value)


def _check_fields(part: str, settings: object, usual: Mapping[str, Any]) -> None:
    for name, value in _known(part, settings, tuple(usual)).items():
        where = f"{part}.{name}"
        if isinstance(usual[name], bool):
            _require(isinstance(value, bool), where, "true or false", value)
        elif isinstance(usual[name], int):
            _require_between(0, _MAX_INT, where, value)
        elif isinstance(usual[name], float):
            _require(isinstance(value, (int, float)) and not isinstance(value, bool), where, "a number", value)
        else:
            _require(isinstance(value, str), where, "a text", value)


def _known(part: str, settings: object, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(settings, dict):
        raise ValueError(f"the header's {part} must be an object, got {settings!r:.40}")
    unknown = [name for name in settings if name not in names]
    if unknown:
        raise ValueError(f"the header's {part} has what this version does not know: {', '.join(unknown):.80}")
    return settings


def _require_between(least: int, greatest: int, name: str, value: object) -> None:
    good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= greatest
    _require(good, name, f"a whole number from {least} to {greatest}", value)


def _require(holds: bool, name: str, allowed: str, value: object) -> None:
    if not holds:
        raise ValueError(f"the header's {name} must be {allowed}, got {value!r:.40}")
