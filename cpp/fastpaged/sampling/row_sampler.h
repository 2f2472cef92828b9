// RowSampler: one row of logits to one token, to the logprobs of a given one, or to a beam's candidates. Holds the
// scratch of one thread, reused from row to row.
#pragma once

#include <cstdint>
#include <vector>

#include "fastpaged/request/sampling_params.h"
#include "fastpaged/sampling/beam_candidates.h"
#include "fastpaged/sampling/logit_edits.h"
#include "fastpaged/sampling/row_scan.h"
#include "fastpaged/sampling/token_filter.h"
#include "fastpaged/sampling/token_weights.h"

namespace fastpaged {

struct RowSample {
  SampledToken token;
  float logprob = 0.0F;  // the rest is filled only if the row is ok and the request wants logprobs or has beams
  std::int32_t rank = 0;
  std::vector<std::int32_t> top_ids;
  std::vector<float> top_logprobs;
};

class RowSampler {
 public:
  // passes: those of any op table, and live as long.
  explicit RowSampler(const LogitPasses& passes = scalar_logit_passes) : passes_(&passes) {}

  // logits [vocab_size], vocab_size > 0. REQUIRES: a given token is in [0, vocab_size). What it does with NaN and
  // infinities: see Sampler.
  RowSample sample(const float* logits, std::int32_t vocab_size, const SampleRequest& request);

 private:
  TokenId choose(const LogitRow& row, const RowScan& scan, const SampleRequest& request);
  void add_candidates(const LogitRow& row, const SampleRequest& request, RowSample& sample);
  void add_logprobs(const LogitRow& row, std::int32_t num_alternatives, RowSample& sample);

  const LogitPasses* passes_;
  RowScan scan_;  // of the raw row
  RowScan edited_scan_;
  LogitEdits edits_;
  TokenFilter filter_;
  TokenWeights weights_;
  BeamCandidates candidates_;
  std::vector<RankedToken> best_;
  std::vector<float> limit_;  // a row with +inf logits, taken to its limit
  std::vector<float> edited_limit_;
};

}  // namespace fastpaged
