// The slow, obvious beam search: whole token lists, whole rows, full sorts. Its language model is a hash of the tokens
// so far.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "fastpaged/base/types.h"
#include "fastpaged/request/sampling_params.h"

namespace fastpaged::test {

// logprobs [vocab_size] of what follows these tokens. Few distinct values, so that sums are often equal; some -inf.
inline std::vector<float> toy_logprobs(const std::vector<TokenId>& tokens, std::int32_t vocab_size, bool holes) {
  std::uint32_t hash = 2166136261U;
  for (const TokenId token : tokens) {
    hash = (hash ^ static_cast<std::uint32_t>(token + 1)) * 16777619U;
  }
  std::vector<float> logprobs;
  for (TokenId id = 0; id < vocab_size; ++id) {
    std::uint32_t bits = (hash ^ static_cast<std::uint32_t>(id + 7)) * 2654435761U;
    bits ^= bits >> 15U;
    const bool hole = holes && bits % 3 == 0;
    logprobs.push_back(hole ? -std::numeric_limits<float>::infinity() : -0.125F * static_cast<float>(bits % 64));
  }
  return logprobs;
}

// Ids of a row, best first.
inline std::vector<TokenId> best_first(const std::vector<float>& logprobs) {
  std::vector<TokenId> ids;
  for (TokenId id = 0; id < std::ssize(logprobs); ++id) {
    ids.push_back(id);
  }
  std::stable_sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) { return logprobs[a] > logprobs[b]; });
  return ids;
}

struct SlowBeam {
  std::vector<TokenId> tokens;  // generated ones
  double sum = 0.0;
  double score = 0.0;  // once finished
};

struct SlowBeamSearch {
  BeamParams params;
  std::int32_t max_length = 0;
  std::vector<TokenId> end_tokens = {};
  std::vector<SlowBeam> live = {{}};
  std::vector<SlowBeam> finished = {};  // best first

  // rows: for each live beam the logprobs of all tokens.
  void grow(const std::vector<std::vector<float>>& rows) {
    std::vector<std::tuple<double, std::size_t, TokenId>> all;
    for (std::size_t rank = 0; rank < live.size(); ++rank) {
      for (TokenId id = 0; id < std::ssize(rows[rank]); ++id) {
        if (std::isfinite(rows[rank][id])) {
          all.emplace_back(-(live[rank].sum + static_cast<double>(rows[rank][id])), rank, id);
        }
      }
    }
    std::sort(all.begin(), all.end());
    std::vector<SlowBeam> next;
    for (std::int32_t i = 0; i < std::min<std::int64_t>(params.num_candidates, std::ssize(all)); ++i) {
      const auto [negative, rank, id] = all[i];
      SlowBeam beam = live[rank];
      beam.tokens.push_back(id);
      beam.sum = -negative;
      const bool at_length = std::ssize(beam.tokens) == max_length;
      if (!at_length && std::count(end_tokens.begin(), end_tokens.end(), id) == 0) {
        next.push_back(beam);
      } else if (i < params.width) {
        finish(beam);
      }
    }
    next.resize(std::min<std::size_t>(next.size(), params.width));
    live = next;
  }

  void finish(SlowBeam beam) {
    beam.score = score(beam.sum, std::ssize(beam.tokens));
    finished.push_back(beam);
    std::stable_sort(finished.begin(), finished.end(),
                     [](const SlowBeam& a, const SlowBeam& b) { return a.score > b.score; });
    finished.resize(std::min<std::size_t>(finished.size(), params.width));
  }

  // Whether it would be among the best if it ended as it is.
  [[nodiscard]] bool keeps(const SlowBeam& beam) const {
    return std::ssize(finished) < params.width || score(beam.sum, std::ssize(beam.tokens)) > finished.back().score;
  }

  [[nodiscard]] double score(double sum, std::int64_t length) const {
    return length == 0 ? 0.0 : sum / std::pow(static_cast<double>(length), params.length_penalty);
  }

  [[nodiscard]] bool over() const {
    if (live.empty()) {
      return true;
    }
    if (std::ssize(finished) < params.width) {
      return false;
    }
    std::int64_t length = std::ssize(live[0].tokens);
    if (params.early_stopping == EarlyStopping::kNever && params.length_penalty > 0.0) {
      length = max_length;
    }
    return params.early_stopping == EarlyStopping::kYes || !(score(live[0].sum, length) > finished.back().score);
  }
};

}  // namespace fastpaged::test
