// SchedulerOutput: one step's decision as a value: {sequence: num_tokens}, and what must be copied first.
#pragma once

#include <cstdint>
#include <utility>
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
  std::int32_t num_draws = 0;    // from the row to sample from: one each for its request's samples, if they part here

  // Of logits: one for each score, in the order of their tokens, then the one to sample from.
  [[nodiscard]] std::int32_t num_rows() const { return num_scores + (samples ? 1 : 0); }
  // Of the sampler: one for each score, then one for each draw.
  [[nodiscard]] std::int32_t num_results() const { return num_scores + num_draws; }
  bool operator==(const ScheduledSequence&) const = default;
};

// What an event says. Those of one beam search and step speak of the beams as they were before the step: each first
// reads its parent's past, then all take effect together.
enum class EventKind : std::uint8_t {
  kSample,  // a branch went on by a token, or ended, or has scores
  kBeam,    // `sequence_id` is a live beam now, grown from `parent_id` by a token. Beams with no such event are gone
  // The same, and it is finished: it stays as `sequence_id`, perhaps to be named again by a result. Without a token:
  // beam `parent_id` as it stands, at the end of the pool; then `sequence_id` is the same, and it does not live any
  // more.
  kHypothesis,
  kResult,  // the search is over: hypothesis `sequence_id` is the answer number `branch`, best first
};

// What a step did to one sequence, as the outside hears of it. Without a token and not finished: scores alone.
struct SequenceEvent {
  EventKind kind = EventKind::kSample;
  GroupId group_id = 0;
  SequenceId sequence_id = 0;
  SequenceId parent_id = 0;     // the sequence it grew from: itself, but for the first token of a fork
  std::int32_t branch = 0;      // which of its request's samples, from 0; of a live beam or a result: its rank, from 0
  double score = 0.0;           // beams: the sum of logprobs; hypotheses and results: that, length_penalty applied
  std::int32_t score_row = 0;   // first row of the sampler's output with a score; the others follow
  std::int32_t num_scores = 0;  // 0 if one of them failed, and for all samples but the first
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
  std::vector<ScheduledSequence> scheduled;  // rows of logits and results in this order
  std::vector<GroupId> preempted;            // in this order; those swapped are in swapped_out too
  std::vector<GroupId> swapped_out;
  std::vector<GroupId> swapped_in;
  std::vector<GroupId> let_in;  // from either line, those swapped in among them, and not preempted again
  // Sequences that ended while planning, without a token: they had reached the end of the pool, or their time was up.
  // They are repeated in each plan until an update() has reported them.
  std::vector<SequenceEvent> ended;
  // Requests let in for the first time by this plan, and how many of their prompt's tokens the prefix cache had.
  std::vector<std::pair<GroupId, std::int32_t>> cached;
  std::int32_t num_tokens = 0;
  std::int32_t num_samples = 0;  // sequences that sample
  std::int32_t num_rows = 0;     // of logits: samples and scores
  std::int32_t num_results = 0;  // of the sampler, as update() wants them: scores and draws
};

}  // namespace fastpaged
