#include <doctest/doctest.h>

#include <limits>
#include <random>

#include "fastpaged/sampling/row_scan.h"
#include "sampling/model.h"

namespace fastpaged {
namespace {

RowScan scan(const std::vector<float>& logits) {
  RowScan result;
  scan_row(LogitRow(logits.data(), static_cast<std::int32_t>(logits.size())), result);
  return result;
}

TEST_CASE("a scan finds the largest logit at its smallest id") {
  std::mt19937 random(1);
  for (int trial = 0; trial < 500; ++trial) {
    const std::vector<float> logits = testing::random_logits(random);
    const RowScan result = scan(logits);
    const auto best = std::max_element(logits.begin(), logits.end());
    CHECK_FALSE(result.has_nan);
    CHECK(result.max == *best);
    CHECK(result.argmax == best - logits.begin());
  }
}

TEST_CASE("a scan keeps the maximum of each block") {
  std::mt19937 random(2);
  const std::vector<float> logits = testing::random_logits(random);
  const RowScan result = scan(logits);
  for (std::size_t b = 0; b < result.block_max.size(); ++b) {
    const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(b * kLogitBlock);
    const auto end = logits.end() - begin > kLogitBlock ? begin + kLogitBlock : logits.end();
    CHECK(result.block_max[b] == *std::max_element(begin, end));
  }
}

TEST_CASE("a scan sees a NaN wherever it is, and whatever its sign") {
  for (const float nan : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> logits(300, 1.0F);
    for (float& logit : logits) {
      logit = nan;
      CHECK(scan(logits).has_nan);
      logit = 1.0F;
    }
    CHECK_FALSE(scan(logits).has_nan);
  }
}

TEST_CASE("infinities are no NaNs") {
  CHECK_FALSE(scan({testing::kInf, -testing::kInf, 0.0F}).has_nan);
  CHECK(scan({-testing::kInf, testing::kInf, testing::kInf}).argmax == 1);
  CHECK(scan({-testing::kInf, -testing::kInf}).max == -testing::kInf);
}

}  // namespace
}  // namespace fastpaged
