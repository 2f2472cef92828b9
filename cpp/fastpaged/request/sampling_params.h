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

// When a beam search ends, beside running out of tokens; num_beams hypotheses being finished.
enum class EarlyStopping : std::uint8_t {
  kNo,     // once the best running beam, scored at its length now, is no better than the worst finished hypothesis
  kYes,    // at once
  kNever,  // once it could not become better at any length up to the longest
};

// A request that keeps its `width` likeliest continuations, in place of sampling one.
struct BeamParams {
  std::int32_t width = 0;  // > 0
  // A hypothesis is worth the sum of its logprobs / (its generated tokens, an ending one included)^length_penalty.
  double length_penalty = 1.0;  // finite
  EarlyStopping early_stopping = EarlyStopping::kNo;
  // Best continuations of all beams that are looked at: max(2, 1 + number of end tokens) x width, so that enough are
  // left when some end. At least 2 x width.
  std::int32_t num_candidates = 0;
  // Stop strings are looked for, outside, where the text is: after a step beams end there, too. Whether the search is
  // over is asked when that is done (Scheduler::finish_beams), of all that ended in the step together.
  bool has_stop_strings = false;
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
  std::optional<BeamParams> beam = {};           // logprobs are then those that are summed: after all edits
};

// Throws std::invalid_argument naming the field, its value and what is allowed. NaN is never allowed.
void validate(const SamplingParams& params);

// Whether sampling looks at the tokens that came before.
[[nodiscard]] bool needs_history(const SamplingParams& params);

// What is wanted of one row of logits: a token sampled, the logprobs of one that is known, or a beam's candidates. The
// random number is a function of (seed, sample_index, position) alone.
struct SampleRequest {
  SamplingParams params = {};
  std::int64_t position = 0;  // index the new token takes in its sequence
  std::int32_t num_output_tokens = 0;
  std::span<const TokenId> history = {};  // prompt, then output; may be empty unless needs_history(params)
  // A token of the prompt: nothing is sampled or edited; what counts is params.num_prompt_logprobs.
  std::optional<TokenId> given = {};
  std::int32_t row = 0;           // of the logits; several requests may look at one row
  std::int32_t sample_index = 0;  // which of a request's samples: it draws with mix(params.seed, sample_index)
};

// The sampler's verdict on one row, as the scheduler needs it: the sampled token, or the given one.
struct SampledToken {
  std::int32_t token_id = 0;
  bool ok = true;  // false: a NaN in the logits, or no token left; the request fails, its batch mates do not
};

// What came of a step's SampleRequests, one entry each, in their order: all that scheduling needs of it.
struct SampledRows {
  std::span<const SampledToken> tokens;
  // Of beams, the best candidates, best first: those of request r are [top_offsets[r], top_offsets[r + 1]) of top_ids.
  // All three may be empty where there are no beams.
  std::span<const std::int32_t> top_offsets = {};
  std::span<const TokenId> top_ids = {};
  std::span<const float> top_logprobs = {};
};

}  // namespace fastpaged
