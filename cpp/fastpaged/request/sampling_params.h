// What a request asks of the sampler. Validated once, at the door.
#pragma once

#include <cstdint>
#include <optional>

namespace fastpaged {

struct SamplingParams {
  float temperature = 1.0F;                       // 0 is greedy
  float top_p = 1.0F;                             // (0, 1]; 1 is off
  std::int32_t top_k = 0;                         // 0 is off
  float min_p = 0.0F;                             // [0, 1]; 0 is off
  std::uint64_t seed = 0;                         // always set: drawn at admission when the user gave none
  std::optional<std::int32_t> num_logprobs = {};  // top alternatives wanted beside the sampled token's own logprob
};

// Throws std::invalid_argument naming the field, its value and what is allowed. NaN is never allowed.
void validate(const SamplingParams& params);

// One row of logits to sample. The random number is a function of (seed, position) alone.
struct SampleRequest {
  SamplingParams params;
  std::int64_t position = 0;  // index the new token takes in its sequence
};

// The sampler's verdict on one row, as the scheduler needs it.
struct SampledToken {
  std::int32_t token_id = 0;
  bool ok = true;  // false: the logits held a NaN; the request fails, its batch mates do not
};

}  // namespace fastpaged
