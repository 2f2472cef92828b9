// BeamSearch: which continuations of a request's live beams go on, which are finished, and when it is over. Numbers
// only: it knows beams by their rank, hypotheses by an id that the caller gives, and neither tokens past nor blocks.
//
// The rules are those of Hugging Face transformers. Of all continuations of all live beams the num_candidates best are
// looked at. One that ends (an end token, or the longest length) is a hypothesis if it is among the `width` best, and
// lost otherwise; the `width` best that do not end are the next live beams. The `width` best hypotheses are kept.
// Order everywhere: the higher sum or score; of equals the beam of better rank, then the smaller token id; of equal
// hypotheses the older one. Sums are float64 sums of float32 logprobs. What has probability 0 is no continuation, so
// that there may be fewer live beams than `width`, or none.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fastpaged/base/types.h"
#include "fastpaged/request/sampling_params.h"
#include "fastpaged/request/stopping.h"

namespace fastpaged {

// Invariant (check_invariants): at most `width` live beams, and as many hypotheses, each in order.
class BeamSearch {
 public:
  // Candidates of one live beam, best first: tokens, and the logprob of each. num_candidates of them are enough.
  struct Row {
    std::span<const TokenId> ids;
    std::span<const float> logprobs;  // as many
  };
  struct Continuation {
    std::int32_t parent = 0;  // its rank
    TokenId token = 0;
    double sum = 0.0;  // of the logprobs of all that was generated
  };
  struct Hypothesis {
    SequenceId id = 0;
    double score = 0.0;
    FinishReason reason = FinishReason::kStop;
  };
  struct Finished {
    Continuation last;
    Hypothesis hypothesis;
  };
  struct Step {
    std::vector<Continuation> live;  // in order of rank
    std::vector<Finished> finished;  // those that are kept, best first
  };

  // One live beam, nothing generated. max_length: most tokens that a hypothesis may have. REQUIRES: params that pass
  // validate(), max_length > 0.
  BeamSearch(const BeamParams& params, std::int32_t max_length);

  // All live beams grow by a token. rows: one for each, in order of rank; end_tokens: sorted. Hypotheses are named
  // next_id and up, which is counted on.
  Step grow(std::span<const Row> rows, std::span<const TokenId> end_tokens, SequenceId& next_id);
  // A live beam becomes a hypothesis as it is: its score, or nullopt if it is not among the best. The live beams after
  // it move up in rank.
  std::optional<double> finish(std::int32_t rank, SequenceId id, FinishReason reason);
  // Nothing more can come, or nothing better by the rule of early stopping.
  [[nodiscard]] bool over() const;

  [[nodiscard]] std::int32_t width() const { return params_.width; }
  [[nodiscard]] bool has_stop_strings() const { return params_.has_stop_strings; }
  [[nodiscard]] std::int32_t num_live() const { return static_cast<std::int32_t>(sums_.size()); }
  [[nodiscard]] std::int32_t length() const { return length_; }                   // of every live beam
  [[nodiscard]] double sum(std::int32_t rank) const { return sums_[rank]; }       // of a live beam
  [[nodiscard]] std::span<const Hypothesis> best() const { return hypotheses_; }  // best first
  void check_invariants() const;

 private:
  [[nodiscard]] std::vector<Continuation> candidates(std::span<const Row> rows) const;
  [[nodiscard]] double score(double sum, std::int32_t length) const;
  bool keep(const Hypothesis& hypothesis);  // false: `width` others are as good

  BeamParams params_;
  std::int32_t max_length_;
  std::int32_t length_ = 0;
  std::vector<double> sums_;  // of live beams, in order of rank
  std::vector<Hypothesis> hypotheses_;
};

}  // namespace fastpaged
