// Sampler: logits -> tokens and logprobs on the CPU. What a request is answered depends on its row of logits, its
// params, seed, sample index, position and tokens only. Several requests may look at one row.
//
// Per request: masks, biases and penalties (logit_edits.h); then temperature 0 takes the best token (the largest logit,
// the smaller id of equals), any other temperature leads to min_p, top_k, top_p (token_filter.h) and one draw: inverse
// CDF in the order of ids at uniform(mix(seed, sample index), position).
// Logprobs are those of the raw logits, before all of these; below the least float32 they are -inf.
// A request with a given token draws nothing: its row says the logprob and rank of that token, and the alternatives.
// Nor does one with beams: its alternatives are its candidates (beam_candidates.h), the best of them its token. Where
// masks leave none, its row is ok and has none.
//
// A row with a NaN, or with nothing above -inf, as it came or after masks, is not ok: token 0, no logprobs; other rows
// do not notice.
// A row with +inf is taken to its limit: its +inf tokens share the probability evenly, the others have none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fastpaged/base/tensor_view.h"
#include "fastpaged/base/thread_pool.h"
#include "fastpaged/request/sampling_params.h"
#include "fastpaged/sampling/row_sampler.h"

namespace fastpaged {

struct SamplerOutput {
  std::vector<SampledToken> tokens;       // [Q], one for each request
  std::vector<float> logprobs;            // [Q] of the token, log-softmax of the raw logits; 0 unless asked for
  std::vector<std::int32_t> ranks;        // [Q] 1-based rank of the token among the raw logits; 0 unless asked for
  std::vector<std::int32_t> top_offsets;  // [Q + 1] alternatives of q: top_ids[top_offsets[q] .. top_offsets[q + 1])
  std::vector<std::int32_t> top_ids;      // best first, ties by smaller id
  std::vector<float> top_logprobs;
};

// One call at a time.
class Sampler {
 public:
  // REQUIRES: the pool outlives the sampler. passes: those of any op table; the answers are the same with all.
  explicit Sampler(ThreadPool& pool, const LogitPasses& passes = scalar_logit_passes);
  // logits: [R, vocab] float32, rows contiguous. Throws std::invalid_argument if it is not, or if a request's row is
  // not one of them, or a given token beyond the vocabulary. REQUIRES: params that pass validate(). Alternatives beyond
  // the vocabulary are left out.
  SamplerOutput sample(const TensorView& logits, std::span<const SampleRequest> requests);

 private:
  ThreadPool& pool_;
  std::vector<RowSampler> row_samplers_;  // one per thread
};

}  // namespace fastpaged
