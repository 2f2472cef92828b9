// What examples of the scheduler are written with.
#pragma once

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged::test {

using Rows = std::vector<std::tuple<GroupId, std::int32_t, std::int32_t>>;

inline SchedulerConfig roomy() {
  SchedulerConfig config;
  config.num_blocks = 100;
  config.block_size = 4;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 64;
  config.max_model_len = 200;
  return config;
}

inline NewRequest request(GroupId id, std::int32_t prompt, std::int32_t max_tokens, std::vector<TokenId> stops = {}) {
  NewRequest request{.id = id};
  request.prompt_token_ids.assign(static_cast<std::size_t>(prompt), 7);
  request.stop = {max_tokens, std::move(stops)};
  return request;
}

inline Rows rows(const SchedulerOutput& plan) {
  Rows rows;
  for (const ScheduledSequence& scheduled : plan.scheduled) {
    rows.emplace_back(scheduled.group_id, scheduled.first_token, scheduled.num_tokens);
  }
  return rows;
}

// Every draw is this token; nothing fails.
inline std::vector<SequenceEvent> answer(Scheduler& scheduler, const SchedulerOutput& plan, TokenId token = 1) {
  const std::vector<SampledToken> tokens(static_cast<std::size_t>(plan.num_results), SampledToken{token, true});
  std::vector<SequenceEvent> events = scheduler.update(plan, tokens);
  scheduler.check_invariants();
  return events;
}

// Plans and answers `steps` steps.
inline void run_steps(Scheduler& scheduler, int steps) {
  for (int step = 0; step < steps; ++step) {
    answer(scheduler, scheduler.schedule());
  }
}

inline std::int64_t num_blocks(const SchedulerOutput& plan, CopyKind kind) {
  std::int64_t count = 0;
  for (const BlockCopy& copy : plan.copies) {
    count += copy.kind == kind ? copy.num_blocks : 0;
  }
  return count;
}

}  // namespace fastpaged::test
