"""What a recorded run met."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from fastpaged.simulator.replay import ReplayResult


def met(path: Path, result: ReplayResult) -> Counter[str]:
    """How often the run of this recording, and its replay, met what."""
    stats = result.stats
    found = Counter(
        {
            "preemptions": stats["num_preemptions"],
            "tokens recomputed": stats["num_tokens_recomputed"],
            "blocks swapped out": stats["num_blocks_swapped_out"],
            "blocks swapped in": stats["num_blocks_swapped_in"],
            "prefix hits": stats["num_prefix_tokens_found"],
            "aborts": 0,
        }
    )
    with path.open(encoding="utf-8") as lines:
        for event in map(json.loads, lines):
            found["aborts"] += event["e"] == "abort" and event["ok"]
            found["forks"] += event["e"] == "add" and "num_samples" in event
            found["beams"] += event["e"] == "add" and "beams" in event
            found["priorities"] += event["e"] == "add" and "priority" in event
            found["copies on write"] += sum(kind == "copy_on_write" for kind, *_ in event.get("copies", ()))
            found["ends by time"] += sum(why in ("deadline", "queue_timeout") for *_, why in event.get("ends", ()))
    return found
