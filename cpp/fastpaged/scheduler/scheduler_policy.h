// SchedulerPolicy: all that scheduling policies differ in, as fields. There is one scheduler.
#pragma once

#include <cstdint>

namespace fastpaged {

// What becomes of a preempted group's K and V. Where the host pool has no room, swapping becomes recomputing.
enum class PreemptionMode : std::uint8_t {
  kRecompute,   // forgotten; prompt and output so far are computed again as one prompt
  kSwap,        // copied to the host pool, and back
  kByBranches,  // the paper's rule: recompute a group of one sequence, swap a group of several
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

  // Section 4.5 of the paper: whole prompts, one block per branch, a watermark of 1 %, swapped groups first, recompute
  // for one sequence and swap for several.
  [[nodiscard]] static SchedulerPolicy paper_2023();
};

// Throws std::invalid_argument naming the field.
void validate(const SchedulerPolicy& policy);

}  // namespace fastpaged
