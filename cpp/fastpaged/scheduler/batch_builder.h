// BatchBuilder: writes a plan into flat, persistent arrays. They are sized once for the scheduler's limits; build()
// allocates nothing. A row of block_tables is as wide as the widest table of the plan.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fastpaged/base/batch.h"
#include "fastpaged/request/sampling_params.h"
#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged {

class BatchBuilder {
 public:
  explicit BatchBuilder(const Scheduler& scheduler);  // REQUIRES: the scheduler outlives the builder

  // Valid until the next build(). Throws std::invalid_argument unless plan is the scheduler's last one, not yet
  // updated, with nothing in it aborted since.
  const Batch& build(const SchedulerOutput& plan);
  // One per sampling row, same order.
  [[nodiscard]] std::span<const SampleRequest> sample_requests() const;

 private:
  void write_tokens(const PlannedSequence& planned, std::int32_t first_row);
  void write_block_table(std::span<const BlockId> blocks, std::int32_t row);

  const Scheduler* scheduler_;
  std::vector<std::int32_t> token_ids_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> slot_mapping_;
  std::vector<std::int32_t> query_start_;
  std::vector<std::int32_t> context_lens_;
  std::vector<std::int32_t> block_tables_;
  std::vector<std::int32_t> sample_rows_;
  std::vector<SampleRequest> sample_requests_;
  std::int32_t num_samples_ = 0;
  Batch batch_;
};

}  // namespace fastpaged
