"""Seeded faults of what happens under pressure: preemption by cost and the window after it, deadlines, the queue, the
host's tier of the prefix cache, and keys and values in 8 bits."""

from __future__ import annotations

from faults import Fault

PRESSURE_FAULTS: tuple[Fault, ...] = (
    Fault(
        name="cost sign flipped: whichever costs more is done",
        file="scheduler/scheduler_preemption.cc",
        good="forecast_.cost_of_swap(group.stakes, config_.costs) <\n",
        bad="forecast_.cost_of_swap(group.stakes, config_.costs) >\n",
    ),
    Fault(
        name="hysteresis off: who came back keeps nothing",
        file="scheduler/scheduler_planning.cc",
        good="keeps ? plan_.step() + static_cast<std::uint64_t>(steps) : 0;",
        bad="0;",
    ),
    Fault(
        name="ageing skipped: who is passed over is so for ever",
        file="scheduler/scheduler_priorities.cc",
        good="    group.aged = true;\n",
        bad="",
    ),
    Fault(
        name="prefill share ignored: a long prompt takes all that is left of a step",
        file="scheduler/scheduler_shares.cc",
        good="  return {.num_tokens = std::min(num_tokens, limits.cut), .is_cut = true};",
        bad="  return {.num_tokens = num_tokens, .is_cut = true};",
    ),
    Fault(
        name="victim oldest instead of youngest: of those that are not kept",
        file="scheduler/scheduler_growth.cc",
        good="      return running_[i];\n",
        bad="      return running_[1];\n",
    ),
    Fault(
        name="deadline ignored: a request whose time is up goes on",
        file="scheduler/scheduler_planning.cc",
        good="  end_expired();\n",
        bad="",
    ),
    Fault(
        name="time-out after the queue: who was let in is still ended by it",
        file="scheduler/scheduler_prefixes.cc",
        good="    clear_queue_deadline(group);\n",
        bad="",
    ),
    Fault(
        name="host entry not moved: what was copied in is still looked up on the host",
        file="kv_cache/kv_cache_manager_prefixes.cc",
        good="      move_entry_in(host, *block, owner);\n",
        bad="",
    ),
    Fault(
        name="host block reused before its copy: what is found there may be evicted on the way in",
        file="kv_cache/kv_cache_manager_prefixes.cc",
        good="    host_.take_cached(host, owner);\n",
        bad="",
    ),
    Fault(
        name="evicted without a copy: the host's block holds anything",
        file="kv_cache/kv_cache_manager_tiers.cc",
        good="  copies_.add(CopyKind::kSwapOut, block, host);\n  ++num_demoted_;\n",
        bad="  ++num_demoted_;\n",
    ),
    Fault(
        name="scale not copied with its block: the last bytes of a copy stay behind",
        file="ops/copy_blocks.cc",
        good="static_cast<std::size_t>(run));",
        bad="static_cast<std::size_t>(run - 4));",
    ),
)
