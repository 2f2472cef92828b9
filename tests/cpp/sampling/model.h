// The slow, obvious model of sampling: everything in float64, by full sorts and plain running sums.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "fastpaged/request/sampling_params.h"

namespace fastpaged::testing {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

// Ids, best first: larger logits, then smaller ids.
inline std::vector<std::int32_t> order_of(const std::vector<float>& logits) {
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) { return logits[a] > logits[b]; });
  return ids;
}

inline std::vector<double> weights_of(const std::vector<float>& logits, float temperature) {
  const double max = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weights;
  for (const float logit : logits) {
    weights.push_back(std::exp((static_cast<double>(logit) - max) / static_cast<double>(temperature)));
  }
  return weights;
}

// In float64, but -inf below the least float32.
inline std::vector<double> log_softmax(const std::vector<float>& logits) {
  const std::vector<double> weights = weights_of(logits, 1.0F);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double max = *std::max_element(logits.begin(), logits.end());
  std::vector<double> logprobs;
  for (const float logit : logits) {
    const double logprob = static_cast<double>(logit) - max - std::log(total);
    const bool too_low = logprob < static_cast<double>(std::numeric_limits<float>::lowest());
    logprobs.push_back(too_low ? static_cast<double>(-kInf) : logprob);
  }
  return logprobs;
}

// How many of the best tokens pass the filters. `slack` moves the two thresholds that rounding could touch: the true
// count lies between those for a slightly negative and a slightly positive slack.
inline std::size_t num_kept(const std::vector<float>& logits, const SamplingParams& params, double slack) {
  const std::vector<std::int32_t> order = order_of(logits);
  const std::vector<double> weights = weights_of(logits, params.temperature);
  std::size_t kept = 0;
  while (kept < order.size() && (logits[order[kept]] == logits[order[0]] ||
                                 weights[order[kept]] >= static_cast<double>(params.min_p) * (1.0 - slack))) {
    ++kept;
  }
  if (params.top_k > 0) {
    kept = std::min(kept, static_cast<std::size_t>(params.top_k));
  }
  if (params.top_p < 1.0F) {
    double total = 0.0;
    for (std::size_t i = 0; i < kept; ++i) {
      total += weights[order[i]];
    }
    double sum = weights[order[0]];
    std::size_t needed = 1;
    while (needed < kept && sum < total * (static_cast<double>(params.top_p) + slack)) {
      sum += weights[order[needed++]];
    }
    kept = needed;
  }
  return kept;
}

// Logits of many shapes: flat, peaked, few distinct values (ties), -inf entries, extreme values; tiny and odd sizes.
inline std::vector<float> random_logits(std::mt19937& random) {
  static constexpr std::size_t kSizes[] = {1, 2, 3, 5, 31, 127, 128, 129, 256, 1000, 5003};
  std::vector<float> logits(kSizes[random() % std::size(kSizes)]);
  const float scale = std::pow(10.0F, static_cast<float>(random() % 4) - 1.0F);
  const bool ties = random() % 3 == 0;
  const bool holes = random() % 4 == 0;
  const bool extremes = random() % 8 == 0;
  std::normal_distribution<float> normal(0.0F, scale);
  for (float& logit : logits) {
    logit = ties ? std::round(normal(random)) : normal(random);
    if (holes && random() % 2 == 0) {
      logit = -kInf;
    }
    if (extremes && random() % 16 == 0) {
      logit = random() % 2 == 0 ? std::numeric_limits<float>::max() : std::numeric_limits<float>::lowest();
    }
  }
  logits[random() % logits.size()] = normal(random);  // at least one that can be sampled
  return logits;
}

inline SamplingParams random_params(std::mt19937& random) {
  static constexpr float kTemperatures[] = {0.01F, 0.3F, 1.0F, 1.0F, 1.7F, 100.0F};
  static constexpr float kTopPs[] = {1e-6F, 0.1F, 0.5F, 0.9F, 0.999F, 1.0F, 1.0F};
  static constexpr std::int32_t kTopKs[] = {0, 0, 1, 2, 7, 50, 400, 100000};
  static constexpr float kMinPs[] = {0.0F, 0.0F, 1e-6F, 0.05F, 0.5F, 1.0F};
  SamplingParams params;
  params.temperature = kTemperatures[random() % std::size(kTemperatures)];
  params.top_p = kTopPs[random() % std::size(kTopPs)];
  params.top_k = kTopKs[random() % std::size(kTopKs)];
  params.min_p = kMinPs[random() % std::size(kMinPs)];
  params.seed = random();
  return params;
}

}  // namespace fastpaged::testing
