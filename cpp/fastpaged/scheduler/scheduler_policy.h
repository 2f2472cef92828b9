// SchedulerPolicy: all that scheduling policies differ in, as fields. There is one scheduler.
#pragma once

#include <cstdint>

namespace fastpaged {

// What becomes of a preempted group's K and V. Where the host pool has no room, swapping becomes recomputing.
enum class PreemptionMode : std::uint8_t {
  kRecompute,   // forgotten; prompt and output so far are computed again as one prompt
  kSwap,        // copied to the host pool, and back
  kByBranches,  // the paper's rule: recompute a group of one sequence, swap a group of several
  // Whichever is cheaper for this group by PreemptionCosts; recomputing if both cost the same. Swapping moves each
  // block it holds out, unless a copy is there, and in. Recomputing computes each of its computed tokens once, however
  // many branches share it, but not what a cached block holds that somebody else holds too: that will be found again.
  // Of what it alone holds in cached blocks such a share will be found, on the device or on the host, as was of late
  // (preemption_forecast.h).
  kAuto,
};

// What moving and computing cost on this machine, in seconds. Measured by whoever runs the plans.
struct PreemptionCosts {
  double seconds_per_token = 0.0;      // computed as part of a prompt
  double seconds_per_block_out = 0.0;  // device -> host
  double seconds_per_block_in = 0.0;   // host -> device

  bool operator==(const PreemptionCosts&) const = default;
};

struct SchedulerPolicy {
  PreemptionMode preemption_mode = PreemptionMode::kByBranches;
  // A prompt may be computed over several steps. False: whole, in the step that admits it, or not yet.
  bool chunked_prefill = true;
  std::int32_t long_prefill_token_threshold = 0;  // most tokens of one sequence in one step; 0 is no limit
  // Share of the pool's blocks that stay free when a group is let in, in [0, 1). Not asked of a group that would run
  // alone.
  double watermark = 0.01;
  // Who is let in leaves room for all that running groups still lack of their known tokens.
  bool counts_running_needs = true;
  // A branch counts as one more block where growth is concerned, needed or not: before a group decodes, and before a
  // swapped one comes back.
  bool block_per_branch = false;
  // Swapped groups come back before any waiting one is looked at. False: one line in order of arrival.
  bool swapped_before_waiting = false;

  // A group that came back after a preemption keeps its blocks for so many steps: it is let in only where there is room
  // for them, and nobody preempts it for room meanwhile. 0: no such window.
  std::int32_t resume_grace_steps = 0;
  // All are in order of priority (smaller first), then of arrival: in line, where they run, and the last of them is the
  // first to be preempted. And who is first in line preempts those of a strictly worse priority, the worst first, if it
  // comes in by that: also where it is a place in the batch or a token of the budget that is missing. False: priorities
  // count for nothing. Not with swapped_before_waiting.
  bool by_priority = false;
  // With by_priority: who was in line while so many steps were planned ages. From then on it goes before all that have
  // not, in order of arrival, and is preempted for nobody's priority. 0: nobody ages.
  std::int32_t ageing_steps = 0;
  // Most tokens in one step, together, of prompts of which it leaves some to be computed or of which more than that is
  // left: nobody who decodes waits for more than that. They have equal parts of it, and so has the next in line, so
  // that nobody waits for the whole of a long prompt: among k of them, S tokens take about S * (k + 1) / prefill_share
  // steps (scheduler_shares.cc). A step that decodes nothing gives them the rest of the budget. Counts for nothing
  // without chunked_prefill. 0: no limit.
  std::int32_t prefill_share = 0;

  // Section 4.5 of the paper: whole prompts, one block per branch, a watermark of 1 %, swapped groups first, recompute
  // for one sequence and swap for several.
  [[nodiscard]] static SchedulerPolicy paper_2023();
};

// Throws std::invalid_argument naming the field.
void validate(const SchedulerPolicy& policy);
void validate(const PreemptionCosts& costs);

}  // namespace fastpaged
