// LogitEdits: what a request does to its logits before a token is chosen: masks, biases, penalties.
//
// In this order, so that penalties act on biased logits:
//   1. allowed_token_ids  all others become -inf
//   2. logit_bias         added
//   3. min_tokens         end_token_ids become -inf while the output is shorter
//   4. bad_words          a word's last token becomes -inf when the output ends in the tokens before it
//   5. repetition         tokens of prompt and output: divided by it when > 0, else multiplied
//   6. frequency          tokens of the output: less it times their count in the output
//   7. presence           tokens of the output: less it
// What is -inf stays so through all of them: where masks stand among them does not matter.
//
// Only the request and its own tokens count, so that neither preemption nor company can change a bit.
#pragma once

#include <cstdint>
#include <vector>

#include "fastpaged/request/sampling_params.h"

namespace fastpaged {

class LogitEdits {
 public:
  // Whether the request changes its logits at this step. Most do not, and pay nothing.
  [[nodiscard]] static bool needed(const SampleRequest& request);

  // The row as the request wants it: [vocab_size], valid until the next call. REQUIRES: no NaN in logits [vocab_size].
  const float* apply(const float* logits, std::int32_t vocab_size, const SampleRequest& request);

 private:
  void apply_rules(const SampleRequest& request);
  void mask_bad_words(const SampleRequest& request);
  void penalize_repetition(const SampleRequest& request);
  void penalize_output(const SampleRequest& request);
  [[nodiscard]] bool holds(TokenId id) const { return static_cast<std::size_t>(id) < row_.size(); }
  void mask(const std::vector<TokenId>& ids);

  std::vector<float> row_;
  std::vector<std::int32_t> counts_;  // by token id; 0 between calls
};

}  // namespace fastpaged
