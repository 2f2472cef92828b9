// What a request asks of the sampler. Validated once, at the door.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "fastpaged/base/types.h"

namespace fastpaged {

// Rules on single tokens. Ids beyond the vocabulary are passed over.
struct TokenRules {
  struct Bias {
    TokenId id = 0;
    float bias = 0.0F;  // [-100, 100]
  };
  std::vector<Bias> logit_bias = {};
  std::vector<TokenId> allowed_token_ids = {};       // no other may come; empty allows all
  std::vector<TokenId> end_token_ids = {};           // may not come before min_tokens
  std::vector<std::vector<TokenId>> bad_words = {};  // none empty; the last token may not follow the ones before it
};

struct SamplingParams {
  float temperature = 1.0F;                       // 0 is greedy
  float top_p = 1.0F;                             // (0, 1]; 1 is off
  std::int32_t top_k = 0;                         // 0 is off
  float min_p = 0.0F;                             // [0, 1]; 0 is off
  std::uint64_t seed = 0;                         // always set: drawn at admission when the user gave none
  std::optional<std::int32_t> num_logprobs = {};  // top alternatives wanted beside the sampled token's own logprob
  std::optional<std::int32_t> num_prompt_logprobs = {};  // the same of the prompt's tokens, given those before them
  float presence_penalty = 0.0F;                         // [-2, 2]; 0 is off
  float frequency_penalty = 0.0F;                        // [-2, 2]; 0 is off
  float repetition_penalty = 1.0F;                       // finite and > 0; 1 is off
  std::int32_t min_tokens = 0;                           // output tokens before one of rules->end_token_ids may come
  std::shared_ptr<const TokenRules> rules = {};  // null: none. Shared, for it may be long and every step copies this
};

// Throws std::invalid_argument naming the field, its value and what is allowed. NaN is never allowed.
void validate(const SamplingParams& params);

// Whether sampling looks at the tokens that came before.
[[nodiscard]] bool needs_history(const SamplingParams& params);

// One row of logits to sample, or to read the logprobs of a token that is known. The random number is a function of
// (seed, position) alone.
struct SampleRequest {
  SamplingParams params;
  std::int64_t position = 0;  // index the new token takes in its sequence
  std::int32_t num_output_tokens = 0;
  std::span<const TokenId> history = {};  // prompt, then output; may be empty unless needs_history(params)
  // A token of the prompt: nothing is sampled or edited; what counts is params.num_prompt_logprobs.
  std::optional<TokenId> given = {};
};

// The sampler's verdict on one row, as the scheduler needs it: the sampled token, or the given one.
struct SampledToken {
  std::int32_t token_id = 0;
  bool ok = true;  // false: a NaN in the logits, or no token left; the request fails, its batch mates do not
};

}  // namespace fastpaged
