// SchedulerOutput: one step's decision as a value: {sequence: num_tokens}, and what must be copied first.
#pragma once

#include <cstdint>
#include <vector>

#include "fastpaged/base/block_copy.h"
#include "fastpaged/base/types.h"
#include "fastpaged/request/stopping.h"

namespace fastpaged {

struct ScheduledSequence {
  GroupId group_id = 0;
  SequenceId sequence_id = 0;
  std::int32_t first_token = 0;  // index of the first token computed in this step
  std::int32_t num_tokens = 0;   // > 0
  bool samples = false;          // the last known token is among them: a new one is sampled
  std::int32_t num_scores = 0;   // tokens of the prompt whose logprobs this step finds out

  // Of logits: one for each score, in the order of their tokens, then the one to sample from.
  [[nodiscard]] std::int32_t num_rows() const { return num_scores + (samples ? 1 : 0); }
  bool operator==(const ScheduledSequence&) const = default;
};

// What a step did to one sequence, as the outside hears of it. Without a token and not finished: scores alone.
struct SequenceEvent {
  GroupId group_id = 0;
  SequenceId sequence_id = 0;
  std::int32_t score_row = 0;   // first row of the sampler's output with a score; the others follow
  std::int32_t num_scores = 0;  // 0 if one of them failed
  std::int32_t sample_row = 0;  // row of the sampler's output; meaningful if has_token
  bool has_token = false;
  TokenId token_id = 0;
  bool finished = false;                             // this sequence
  bool group_finished = false;                       // with it, the last of its request
  FinishReason finish_reason = FinishReason::kStop;  // meaningful if finished
};

struct SchedulerOutput {
  std::uint64_t step = 0;                    // which schedule() of its scheduler made it, from 1
  std::vector<BlockCopy> copies;             // to be run in this order before anything is computed
  std::vector<ScheduledSequence> scheduled;  // rows of logits in this order
  std::vector<GroupId> preempted;            // in this order; those swapped are in swapped_out too
  std::vector<GroupId> swapped_out;
  std::vector<GroupId> swapped_in;
  std::vector<GroupId> let_in;  // from either line, those swapped in among them, and not preempted again
  // Sequences that ended while planning, without a token: they had reached the end of the pool.
  // They are repeated in each plan until an update() has reported them.
  std::vector<SequenceEvent> ended;
  std::int32_t num_tokens = 0;
  std::int32_t num_samples = 0;
  std::int32_t num_rows = 0;  // of logits: samples and scores
};

}  // namespace fastpaged
