"""Configurations of a scheduler in which everything is scarce, for Hypothesis to draw from."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fastpaged._core import PreemptionCosts, SchedulerPolicy

MODES = st.sampled_from(["recompute", "swap", "by_branches", "auto"])
SECONDS = st.sampled_from([0.0, 1.0, 2.0, 5.0])
COSTS = st.builds(
    PreemptionCosts, seconds_per_token=SECONDS, seconds_per_block_out=SECONDS, seconds_per_block_in=SECONDS
)


@st.composite
def policies(draw: st.DrawFn) -> SchedulerPolicy:
    if draw(st.integers(0, 3)) == 0:
        return SchedulerPolicy.paper_2023()
    chunked_prefill = draw(st.sampled_from([True, True, False]))
    swapped_before_waiting = draw(st.booleans())
    return SchedulerPolicy(
        preemption_mode=draw(MODES),
        chunked_prefill=chunked_prefill,
        long_prefill_token_threshold=draw(st.integers(0, 4)) if chunked_prefill else 0,
        watermark=draw(st.sampled_from([0.0, 0.01, 0.3, 0.9])),
        counts_running_needs=draw(st.booleans()),
        block_per_branch=draw(st.booleans()),
        swapped_before_waiting=swapped_before_waiting,
        resume_grace_steps=draw(st.sampled_from([0, 0, 1, 5])),
        by_priority=not swapped_before_waiting and draw(st.booleans()),
        ageing_steps=draw(st.sampled_from([0, 1, 6])),
        prefill_share=draw(st.sampled_from([0, 0, 1, 2, 6])),
    )


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    policy = draw(policies())
    max_model_len = draw(st.sampled_from([2, 5, 12, 20, 40, 60]))
    least_tokens = 1 if policy.chunked_prefill else max_model_len
    prefix_caching = draw(st.booleans())
    return {
        "num_blocks": draw(st.sampled_from([3, 4, 5, 6, 8, 10, 12])),
        "block_size": draw(st.sampled_from([1, 2, 3, 4])),
        "num_host_blocks": draw(st.sampled_from([0, 2, 6, 12])),
        "max_num_seqs": draw(st.sampled_from([1, 2, 4, 6, 8])),
        "max_num_batched_tokens": least_tokens + draw(st.sampled_from([0, 1, 3, 7, 15])),
        "max_model_len": max_model_len,
        "policy": policy,
        "costs": draw(COSTS),
        "prefix_caching": prefix_caching,
        "max_pinned_blocks": draw(st.sampled_from([0, 2, 12])) if prefix_caching else 0,
        "prefix_hash_mask": draw(st.sampled_from([1, 2**64 - 1])),
    }
