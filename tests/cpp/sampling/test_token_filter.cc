#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "fastpaged/sampling/token_filter.h"
#include "sampling/model.h"

namespace fastpaged {
namespace {

// The ids that a filter leaves with a weight, best first.
std::vector<std::int32_t> kept_by(const std::vector<float>& logits, const SamplingParams& params) {
  const LogitRow row(logits.data(), static_cast<std::int32_t>(logits.size()));
  RowScan scan;
  scan_row(row, scan);
  TokenFilter filter;
  TokenWeights weights;
  filter.apply({row, scan, params.temperature}, params, weights);
  std::vector<std::int32_t> ids;
  for (const std::int32_t id : testing::order_of(logits)) {
    const std::int32_t b = id / kLogitBlock;
    if (weights.block_sum(b) > 0.0 && weights.block(b)[id % kLogitBlock] > 0.0F) {
      ids.push_back(id);
    }
  }
  return ids;
}

TEST_CASE("what passes the filters is a run of best tokens as long as the float64 model says") {
  std::mt19937 random(1);
  int num_exact = 0;
  constexpr int kTrials = 3000;
  for (int trial = 0; trial < kTrials; ++trial) {
    const std::vector<float> logits = testing::random_logits(random);
    const SamplingParams params = testing::random_params(random);
    const std::vector<std::int32_t> kept = kept_by(logits, params);
    CAPTURE(trial);
    CAPTURE(logits.size());
    CAPTURE(params.temperature);
    CAPTURE(params.top_p);
    CAPTURE(params.top_k);
    CAPTURE(params.min_p);
    constexpr double kRounding = 2e-5;
    const std::size_t fewest = testing::num_kept(logits, params, -kRounding);
    const std::size_t most = testing::num_kept(logits, params, kRounding);
    REQUIRE(fewest <= most);
    const std::vector<std::int32_t> order = testing::order_of(logits);
    REQUIRE(kept.size() <= most);
    REQUIRE(std::equal(kept.begin(), kept.end(), order.begin()));
    if (kept.size() < fewest) {  // only because what is left has a weight that counts as 0
      REQUIRE(testing::weights_of(logits, params.temperature)[order[kept.size()]] < std::exp(-86.99));
    }
    num_exact += fewest == most;
  }
  CHECK(num_exact > kTrials * 9 / 10);  // rounding left the model few doubts
}

TEST_CASE("top_k = 1 leaves the greedy token alone, whatever the ties and the temperature") {
  std::mt19937 random(2);
  for (int trial = 0; trial < 300; ++trial) {
    const std::vector<float> logits = testing::random_logits(random);
    SamplingParams params = testing::random_params(random);
    params.top_k = 1;
    params.temperature = trial % 2 == 0 ? 1e30F : 1e-30F;
    CHECK(kept_by(logits, params) == std::vector<std::int32_t>{testing::order_of(logits)[0]});
  }
}

TEST_CASE("top_k keeps exactly k of equal tokens, those with the smallest ids") {
  const std::vector<float> logits(1000, -2.5F);
  for (const std::int32_t k : {1, 2, 7, 8, 127, 128, 129, 999}) {
    SamplingParams params;
    params.top_k = k;
    std::vector<std::int32_t> expected(static_cast<std::size_t>(k));
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(kept_by(logits, params) == expected);
  }
}

TEST_CASE("top_k = 0, or as large as the vocabulary, keeps everything") {
  const std::vector<float> logits = {0.0F, 1.0F, -1.0F};
  for (const std::int32_t k : {0, 3, 4, 1 << 30}) {
    SamplingParams params;
    params.top_k = k;
    CHECK(kept_by(logits, params).size() == 3);
  }
}

TEST_CASE("a tiny top_p keeps the best token and no tie of it") {
  SamplingParams params;
  params.top_p = 1e-30F;
  CHECK(kept_by({1.0F, 2.0F, 2.0F, 0.0F}, params) == std::vector<std::int32_t>{1});
}

TEST_CASE("top_p ends with the token that reaches it") {
  const std::vector<float> logits(8, 0.5F);  // each 1/8
  const auto num_kept = [&](float top_p) {
    SamplingParams params;
    params.top_p = top_p;
    return kept_by(logits, params).size();
  };
  CHECK(num_kept(0.125F) == 1);
  CHECK(num_kept(std::nextafter(0.125F, 1.0F)) == 2);
  CHECK(num_kept(0.5F) == 4);
  CHECK(num_kept(std::nextafter(1.0F, 0.0F)) == 8);
}

TEST_CASE("top_p may end exactly where the weights change") {
  const float half = -std::log(2.0F);
  SamplingParams params;
  params.top_p = 0.75F;  // of 1 + 1 + 1 + 1/2 + 1/2
  CHECK(kept_by({half, 0.0F, 0.0F, half, 0.0F}, params) == std::vector<std::int32_t>{1, 2, 4});
}

TEST_CASE("top_p shares out what top_k has left") {
  SamplingParams params;
  params.top_k = 2;
  params.top_p = 0.5F;
  CHECK(kept_by({0.0F, 0.0F, 0.0F, 0.0F}, params) == std::vector<std::int32_t>{0});
  params.top_p = 0.51F;
  CHECK(kept_by({0.0F, 0.0F, 0.0F, 0.0F}, params) == std::vector<std::int32_t>{0, 1});
}

TEST_CASE("min_p = 1 keeps the ties of the best token and nothing else") {
  for (const float temperature : {1e-30F, 1.0F, 1e6F}) {
    SamplingParams params;
    params.min_p = 1.0F;
    params.temperature = temperature;
    CHECK(kept_by({7.0F, std::nextafter(7.0F, 0.0F), 7.0F, -1.0F}, params) == std::vector<std::int32_t>{0, 2});
  }
}

TEST_CASE("min_p keeps a token that just reaches it") {
  SamplingParams params;
  params.min_p = 0.5F;
  const float half = std::log(0.5F);
  CHECK(kept_by({0.0F, half, std::nextafter(half, -1.0F)}, params) == std::vector<std::int32_t>{0, 1});
}

TEST_CASE("min_p is measured after the temperature") {
  const std::vector<float> logits = {0.0F, -1.0F};  // p ratio e^(-1 / T)
  SamplingParams params;
  params.min_p = 0.5F;
  params.temperature = 1.0F;
  CHECK(kept_by(logits, params).size() == 1);
  params.temperature = 2.0F;
  CHECK(kept_by(logits, params).size() == 2);
}

}  // namespace
}  // namespace fastpaged
