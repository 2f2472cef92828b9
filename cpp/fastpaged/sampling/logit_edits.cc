#include "fastpaged/sampling/logit_edits.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>

namespace fastpaged {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

std::span<const TokenId> output_of(const SampleRequest& request) {
  const auto num_output = static_cast<std::size_t>(std::max(request.num_output_tokens, 0));
  return request.history.last(std::min(num_output, request.history.size()));
}

bool ends_in(std::span<const TokenId> tokens, std::span<const TokenId> tail) {
  return tokens.size() >= tail.size() && std::ranges::equal(tokens.last(tail.size()), tail);
}

bool holds_back_the_end(const SampleRequest& request) {
  return request.num_output_tokens < request.params.min_tokens && !request.params.rules->end_token_ids.empty();
}

}  // namespace

bool LogitEdits::needed(const SampleRequest& request) {
  if (needs_history(request.params)) {
    return true;
  }
  const TokenRules* rules = request.params.rules.get();
  return rules != nullptr &&
         (!rules->logit_bias.empty() || !rules->allowed_token_ids.empty() || holds_back_the_end(request));
}

const float* LogitEdits::apply(const float* logits, std::int32_t vocab_size, const SampleRequest& request) {
  const TokenRules* rules = request.params.rules.get();
  if (rules == nullptr || rules->allowed_token_ids.empty()) {
    row_.assign(logits, logits + vocab_size);
  } else {
    row_.assign(static_cast<std::size_t>(vocab_size), kMasked);
    for (const TokenId id : rules->allowed_token_ids) {
      if (holds(id)) {
        row_[id] = logits[id];
      }
    }
  }
  if (rules != nullptr) {
    apply_rules(request);
  }
  counts_.resize(row_.size());
  if (request.params.repetition_penalty != 1.0F) {
    penalize_repetition(request);
  }
  if (request.params.frequency_penalty != 0.0F || request.params.presence_penalty != 0.0F) {
    penalize_output(request);
  }
  return row_.data();
}

void LogitEdits::apply_rules(const SampleRequest& request) {
  for (const TokenRules::Bias& item : request.params.rules->logit_bias) {
    if (holds(item.id)) {
      row_[item.id] += item.bias;
    }
  }
  if (holds_back_the_end(request)) {
    mask(request.params.rules->end_token_ids);
  }
  mask_bad_words(request);
}

void LogitEdits::mask(const std::vector<TokenId>& ids) {
  for (const TokenId id : ids) {
    if (holds(id)) {
      row_[id] = kMasked;
    }
  }
}

void LogitEdits::mask_bad_words(const SampleRequest& request) {
  const std::span<const TokenId> output = output_of(request);
  for (const std::vector<TokenId>& word : request.params.rules->bad_words) {
    if (holds(word.back()) && ends_in(output, std::span(word).first(word.size() - 1))) {
      row_[word.back()] = kMasked;
    }
  }
}

void LogitEdits::penalize_repetition(const SampleRequest& request) {
  const float penalty = request.params.repetition_penalty;
  for (const TokenId id : request.history) {
    if (holds(id) && counts_[id] == 0) {
      counts_[id] = 1;
      row_[id] = row_[id] > 0.0F ? row_[id] / penalty : row_[id] * penalty;
    }
  }
  for (const TokenId id : request.history) {
    if (holds(id)) {
      counts_[id] = 0;
    }
  }
}

void LogitEdits::penalize_output(const SampleRequest& request) {
  const std::span<const TokenId> output = output_of(request);
  for (const TokenId id : output) {
    if (holds(id)) {
      ++counts_[id];
    }
  }
  for (const TokenId id : output) {
    if (holds(id) && counts_[id] > 0) {
      row_[id] -= request.params.frequency_penalty * static_cast<float>(counts_[id]);
      row_[id] -= request.params.presence_penalty;
      counts_[id] = 0;
    }
  }
}

}  // namespace fastpaged
