// TokenFilter: min-p, top-k and top-p as one cutoff in the order of tokens.
//
// Applied after the temperature in vLLM's order, each to what the ones before it have left (vllm/v1/sample/sampler.py:
// "Apply temperature", "argmax-invariant processors, by default min_p", "top_k and/or top_p"; and
// vllm/v1/sample/ops/topk_topp_sampler.py):
//   min_p  keeps tokens with p >= min_p * p_best, compared as scaled logit >= log(min_p)
//   top_k  keeps the k best: exactly k, ties at the k-th place go to the smaller ids (vLLM keeps all of them)
//   top_p  keeps the shortest run of best tokens whose share of the remaining probability is >= top_p
// The best token always stays.
#pragma once

#include <vector>

#include "fastpaged/request/sampling_params.h"
#include "fastpaged/sampling/scaled_row.h"
#include "fastpaged/sampling/token_order.h"
#include "fastpaged/sampling/token_weights.h"
#include "fastpaged/sampling/top_p.h"

namespace fastpaged {

class TokenFilter {
 public:
  // Assigns to `weights` the tokens of the row that pass the filters of `params`.
  void apply(const ScaledRow& row, const SamplingParams& params, TokenWeights& weights);

 private:
  std::vector<RankedToken> scratch_;
  TopP top_p_;
};

}  // namespace fastpaged
