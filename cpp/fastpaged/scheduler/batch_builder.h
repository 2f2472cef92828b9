// BatchBuilder: writes a plan into flat, persistent arrays. They are sized once for the scheduler's limits; build()
// allocates nothing, unless the histories of sequences whose sampling looks at them outgrow every step before.
//
// Block tables are long and change little: a row that has the same sequence as last time gets only its new entries, so
// that a step's cost does not grow with the context. Rows are at least as wide as the widest table of the plan.
#pragma once

#include <cstdint>
#include <optional>
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
  // updated, with nothing in it aborted since. Throws InvariantError if it would write into a block that is shared.
  const Batch& build(const SchedulerOutput& plan);
  // plan.num_results of them: of each sequence its scores, then its draws. The histories in them are copies, valid
  // until the next build().
  [[nodiscard]] std::span<const SampleRequest> sample_requests() const;

 private:
  void write_tokens(const PlannedSequence& planned, std::int32_t first_row);
  void write_rows(const PlannedSequence& planned, std::int32_t first_row);
  void fit_width(std::int32_t widest);
  void write_block_table(const BlockTable& table, std::int32_t row);
  void write_histories(std::span<const PlannedSequence> sequences);

  // What a row of block_tables_ holds.
  struct TableRow {
    std::optional<SequenceId> owner;
    std::uint64_t version = 0;
    std::int32_t size = 0;  // the rest is zero
  };

  const Scheduler* scheduler_;
  std::vector<std::int32_t> token_ids_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> slot_mapping_;
  std::vector<std::int32_t> query_start_;
  std::vector<std::int32_t> context_lens_;
  std::vector<std::int32_t> block_tables_;
  std::vector<TableRow> table_rows_;
  std::int32_t width_ = 0;  // of a row of block_tables_
  std::vector<std::int32_t> sample_rows_;
  std::vector<SampleRequest> sample_requests_;
  std::vector<TokenId> histories_;  // of those requests that need one, one after the other
  std::int32_t num_rows_ = 0;
  std::int32_t num_results_ = 0;
  Batch batch_;
};

}  // namespace fastpaged
