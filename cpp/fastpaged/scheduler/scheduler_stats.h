// SchedulerStats: what preemption and sharing have cost since the scheduler was made.
#pragma once

#include <cstdint>

namespace fastpaged {

// A plan that was never updated may not have been carried out; what it decided counts all the same.
struct SchedulerStats {
  std::int64_t num_preemptions = 0;  // of groups, by either means
  std::int64_t num_groups_swapped_out = 0;
  std::int64_t num_groups_swapped_in = 0;
  std::int64_t num_blocks_swapped_out = 0;  // of groups, copied: not what the other tier has already
  std::int64_t num_blocks_swapped_in = 0;
  std::int64_t num_blocks_copied_on_write = 0;  // of partly cached blocks too
  std::int64_t num_tokens_recomputed = 0;       // computed once more, by the time they are
  // Of prompts let in for the first time, what comes back after a preemption not among them:
  std::int64_t num_prefix_tokens_looked_up = 0;
  std::int64_t num_prefix_tokens_found = 0;
  std::int64_t num_partial_prefix_blocks = 0;  // copied because their beginning alone was found, by whomever
  std::int64_t num_cached_blocks_evicted = 0;
  // Of the prefix cache on the host (SchedulerConfig::host_prefix_tier):
  std::int64_t num_prefix_blocks_demoted = 0;     // copied there when the device evicted them
  std::int64_t num_prefix_blocks_promoted = 0;    // copied back, whole or for their beginning
  std::int64_t num_host_prefix_tokens_found = 0;  // of num_prefix_tokens_found
  std::int64_t num_host_cached_blocks_evicted = 0;
  std::int64_t num_pins_released = 0;  // for a request that had no room otherwise

  bool operator==(const SchedulerStats&) const = default;
};

// What preemptions have cost one request. Copied blocks, not entries of tables.
struct RequestCost {
  std::int64_t num_preemptions = 0;
  std::int64_t num_tokens_recomputed = 0;
  std::int64_t num_blocks_swapped_out = 0;
  std::int64_t num_blocks_swapped_in = 0;

  bool operator==(const RequestCost&) const = default;
};

}  // namespace fastpaged
