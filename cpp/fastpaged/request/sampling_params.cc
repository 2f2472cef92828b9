#include "fastpaged/request/sampling_params.h"

#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "fastpaged/base/check.h"

namespace fastpaged {

namespace {

constexpr float kMaxPenalty = 2.0F;
constexpr float kMaxBias = 100.0F;

template <typename Number>
void require_param(bool holds, std::string_view name, std::string_view allowed, Number given) {
  require(holds,
          [&] { return std::string(name) + " must be " + std::string(allowed) + ", got " + std::to_string(given); });
}

bool lies_within(float value, float limit) {
  return value >= -limit && value <= limit;
}

void validate_penalties(const SamplingParams& params) {
  require_param(lies_within(params.presence_penalty, kMaxPenalty), "presence_penalty", "in [-2, 2]",
                params.presence_penalty);
  require_param(lies_within(params.frequency_penalty, kMaxPenalty), "frequency_penalty", "in [-2, 2]",
                params.frequency_penalty);
  const bool finite = params.repetition_penalty <= std::numeric_limits<float>::max();
  require_param(params.repetition_penalty > 0.0F && finite, "repetition_penalty", "finite and > 0",
                params.repetition_penalty);
}

void validate_ids(const std::vector<TokenId>& ids, std::string_view name) {
  for (const TokenId id : ids) {
    require_param(id >= 0, name, "token ids >= 0", id);
  }
}

void validate(const TokenRules& rules) {
  for (const TokenRules::Bias& item : rules.logit_bias) {
    require_param(item.id >= 0, "logit_bias", "of token ids >= 0", item.id);
    require_param(lies_within(item.bias, kMaxBias), "logit_bias", "in [-100, 100]", item.bias);
  }
  validate_ids(rules.allowed_token_ids, "allowed_token_ids");
  validate_ids(rules.end_token_ids, "end_token_ids");
  for (const std::vector<TokenId>& word : rules.bad_words) {
    require_param(!word.empty(), "bad_words", "words of at least one token", word.size());
    validate_ids(word, "bad_words");
  }
}

void validate(const BeamParams& beam) {
  require_param(beam.width > 0, "beam_width", "> 0", beam.width);
  require_param(std::isfinite(beam.length_penalty), "length_penalty", "finite", beam.length_penalty);
  require_param(beam.num_candidates / 2 >= beam.width, "num_candidates", ">= 2 x beam_width", beam.num_candidates);
}

}  // namespace

void validate(const SamplingParams& params) {
  const bool finite = params.temperature <= std::numeric_limits<float>::max();
  require_param(params.temperature >= 0.0F && finite, "temperature", "finite and >= 0", params.temperature);
  require_param(params.top_p > 0.0F && params.top_p <= 1.0F, "top_p", "in (0, 1]", params.top_p);
  require_param(params.top_k >= 0, "top_k", ">= 0 (0 is off)", params.top_k);
  require_param(params.min_p >= 0.0F && params.min_p <= 1.0F, "min_p", "in [0, 1]", params.min_p);
  const std::int32_t num_logprobs = params.num_logprobs.value_or(0);
  require_param(num_logprobs >= 0, "num_logprobs", ">= 0", num_logprobs);
  const std::int32_t num_prompt_logprobs = params.num_prompt_logprobs.value_or(0);
  require_param(num_prompt_logprobs >= 0, "num_prompt_logprobs", ">= 0", num_prompt_logprobs);
  validate_penalties(params);
  require_param(params.min_tokens >= 0, "min_tokens", ">= 0", params.min_tokens);
  if (params.rules != nullptr) {
    validate(*params.rules);
  }
  if (params.beam) {
    validate(*params.beam);
  }
}

bool needs_history(const SamplingParams& params) {
  return params.presence_penalty != 0.0F || params.frequency_penalty != 0.0F || params.repetition_penalty != 1.0F ||
         (params.rules != nullptr && !params.rules->bad_words.empty());
}

}  // namespace fastpaged
