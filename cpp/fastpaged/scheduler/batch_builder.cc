#include "fastpaged/scheduler/batch_builder.h"

#include <algorithm>
#include <bit>
#include <string>

#include "fastpaged/base/check.h"

namespace fastpaged {

namespace {

// Neither a sequence's limit nor the pool lets a table grow beyond this.
std::int64_t max_table_size(const Scheduler& scheduler) {
  const KVCacheManager& kv_cache = scheduler.kv_cache();
  return std::min(kv_cache.num_blocks(), kv_cache.blocks_for(scheduler.config().max_model_len));
}

// A step has no more sequences than tokens.
std::int64_t max_batch_rows(const SchedulerConfig& config) {
  return std::min(config.max_num_seqs, config.max_num_batched_tokens);
}

// Nor more rows of logits.
std::int64_t max_sample_rows(const SchedulerConfig& config) {
  return config.max_num_rows == 0 ? config.max_num_batched_tokens
                                  : std::min(config.max_num_rows, config.max_num_batched_tokens);
}

// A row may be drawn from several times, but no more in all than there may be sequences afterwards.
std::int64_t max_sample_requests(const SchedulerConfig& config) {
  return max_sample_rows(config) + config.max_num_seqs;
}

}  // namespace

BatchBuilder::BatchBuilder(const Scheduler& scheduler)
    : scheduler_(&scheduler),
      token_ids_(scheduler.config().max_num_batched_tokens),
      positions_(scheduler.config().max_num_batched_tokens),
      slot_mapping_(scheduler.config().max_num_batched_tokens),
      query_start_(max_batch_rows(scheduler.config()) + 1),
      context_lens_(max_batch_rows(scheduler.config())),
      block_tables_(max_batch_rows(scheduler.config()) * max_table_size(scheduler)),
      table_rows_(max_batch_rows(scheduler.config())),
      sample_rows_(max_sample_rows(scheduler.config())),
      sample_requests_(max_sample_requests(scheduler.config())) {}

const Batch& BatchBuilder::build(const SchedulerOutput& plan) {
  scheduler_->plan().require_current(plan);
  const std::span<const PlannedSequence> sequences = scheduler_->plan().sequences();
  std::int32_t widest = 0;
  for (const PlannedSequence& planned : sequences) {
    require(planned.sequence != nullptr, [&] {
      return "plan holds sequence " + std::to_string(planned.what.sequence_id) + " of group_id " +
             std::to_string(planned.what.group_id) + ", which was aborted since";
    });
    widest = std::max(widest, planned.sequence->table().size());
  }
  fit_width(widest);
  batch_.max_blocks_per_sequence = width_;

  std::int32_t token_row = 0;
  std::int32_t sequence_row = 0;
  num_rows_ = 0;
  num_results_ = 0;
  for (const PlannedSequence& planned : sequences) {
    query_start_[sequence_row] = token_row;
    context_lens_[sequence_row] = planned.what.first_token + planned.what.num_tokens;
    write_block_table(planned.sequence->table(), sequence_row);
    write_tokens(planned, token_row);
    write_rows(planned, token_row);
    token_row += planned.what.num_tokens;
    ++sequence_row;
  }
  query_start_[sequence_row] = token_row;
  write_histories(sequences);

  const auto first = [](const std::vector<std::int32_t>& array, std::int64_t count) {
    return std::span(array).first(static_cast<std::size_t>(count));
  };
  batch_.token_ids = first(token_ids_, token_row);
  batch_.positions = first(positions_, token_row);
  batch_.slot_mapping = first(slot_mapping_, token_row);
  batch_.query_start = first(query_start_, sequence_row + 1);
  batch_.context_lens = first(context_lens_, sequence_row);
  batch_.block_tables = first(block_tables_, std::int64_t{sequence_row} * width_);
  batch_.sample_rows = first(sample_rows_, num_rows_);
  return batch_;
}

std::span<const SampleRequest> BatchBuilder::sample_requests() const {
  return std::span(sample_requests_).first(static_cast<std::size_t>(num_results_));
}

// first_row: of the sequence's first token in this step.
void BatchBuilder::write_rows(const PlannedSequence& planned, std::int32_t first_row) {
  const Sequence& sequence = *planned.sequence;
  for (std::int32_t i = 0; i < planned.what.num_scores; ++i) {
    const std::int32_t position = sequence.num_scored() + i;
    sample_rows_[num_rows_] = first_row + position - planned.what.first_token;
    sample_requests_[num_results_++] = {.params = planned.group->sampling,
                                        .position = position + 1,
                                        .given = sequence.token_ids()[position + 1],
                                        .row = num_rows_++};
  }
  if (planned.what.samples) {
    sample_rows_[num_rows_] = first_row + planned.what.num_tokens - 1;
    for (std::int32_t i = 0; i < planned.what.num_draws; ++i) {
      sample_requests_[num_results_++] = {.params = planned.group->sampling,
                                          .position = sequence.num_tokens(),
                                          .num_output_tokens = sequence.num_output_tokens(),
                                          .row = num_rows_,
                                          .sample_index = sequence.branch() + i};
    }
    ++num_rows_;
  }
}

// Copies, so that a batch stays sound whatever becomes of the sequences before it is sampled.
void BatchBuilder::write_histories(std::span<const PlannedSequence> sequences) {
  const auto looks_back = [](const PlannedSequence& planned) {
    return planned.what.samples && needs_history(planned.group->sampling);
  };
  std::size_t total = 0;
  for (const PlannedSequence& planned : sequences) {
    total += looks_back(planned) ? planned.sequence->token_ids().size() : 0;
  }
  if (total > histories_.size()) {
    histories_.resize(total);
    for (SampleRequest& request : sample_requests_) {
      request.history = {};  // nothing is left where an earlier batch's were
    }
  }
  auto end = histories_.begin();
  std::int32_t next = 0;
  for (const PlannedSequence& planned : sequences) {
    const std::int32_t first_draw = next + planned.what.num_scores;
    next += planned.what.num_results();
    if (looks_back(planned)) {
      const auto begin = end;
      end = std::copy(planned.sequence->token_ids().begin(), planned.sequence->token_ids().end(), begin);
      for (std::int32_t draw = first_draw; draw < next; ++draw) {
        sample_requests_[draw].history = {begin, end};
      }
    }
  }
}

void BatchBuilder::write_tokens(const PlannedSequence& planned, std::int32_t first_row) {
  const std::int32_t block_size = scheduler_->kv_cache().block_size();
  const std::span<const TokenId> token_ids = planned.sequence->token_ids();
  const std::span<const BlockId> blocks = planned.sequence->table().blocks();
  scheduler_->kv_cache().check_writable(planned.sequence->table(), planned.what.first_token, planned.what.num_tokens);
  std::int32_t position = planned.what.first_token;
  const std::int32_t end = position + planned.what.num_tokens;
  std::copy(token_ids.begin() + position, token_ids.begin() + end, token_ids_.begin() + first_row);

  std::int32_t row = first_row;
  while (position < end) {  // a block at a time: one division, not one per token
    const std::int32_t index = position / block_size;
    const std::int32_t block_end = std::min(end, (index + 1) * block_size);
    const std::int32_t slot_of_position_0 = (blocks[index] - index) * block_size;
    for (; position < block_end; ++position, ++row) {
      positions_[row] = position;
      slot_mapping_[row] = slot_of_position_0 + position;
    }
  }
}

// Powers of two, so that growing tables seldom move the rows.
void BatchBuilder::fit_width(std::int32_t widest) {
  if (widest <= width_ && (widest == 0 || std::int64_t{widest} * 4 > width_)) {
    return;
  }
  const auto power = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint32_t>(widest)));
  width_ = static_cast<std::int32_t>(std::min(power, max_table_size(*scheduler_)));
  std::fill(table_rows_.begin(), table_rows_.end(),
            TableRow{.owner = std::nullopt, .version = 0, .size = width_});  // anything may lie there now
}

void BatchBuilder::write_block_table(const BlockTable& table, std::int32_t row) {
  TableRow& last = table_rows_[row];
  const bool grown_only = last.owner == table.owner() && last.version == table.version();
  const std::int32_t first_new = grown_only ? last.size : 0;
  const auto begin = block_tables_.begin() + std::int64_t{row} * width_;
  std::copy(table.blocks().begin() + first_new, table.blocks().end(), begin + first_new);
  std::fill(begin + table.size(), begin + std::max(table.size(), last.size), 0);
  last = {table.owner(), table.version(), table.size()};
}

}  // namespace fastpaged
