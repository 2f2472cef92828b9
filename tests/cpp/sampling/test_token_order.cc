#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "fastpaged/sampling/token_order.h"
#include "sampling/model.h"

namespace fastpaged {
namespace {

TEST_CASE("the n best tokens are those of a full sort, for every n and with ties") {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const std::vector<float> logits = testing::random_logits(random);
    const LogitRow row(logits.data(), static_cast<std::int32_t>(logits.size()));
    RowScan scan;
    scan_row(row, scan);
    const std::vector<std::int32_t> order = testing::order_of(logits);
    const auto n = static_cast<std::int32_t>(1 + random() % logits.size());
    std::vector<RankedToken> best;
    for (const std::int32_t count : {1, n, row.size()}) {
      select_best(row, scan, count, best);
      CHECK(best[count - 1].id == order[count - 1]);
      std::sort(best.begin(), best.begin() + count, better);
      for (std::int32_t i = 0; i < count; ++i) {
        REQUIRE(best[i].id == order[i]);
        REQUIRE(best[i].logit == logits[order[i]]);
      }
    }
  }
}

TEST_CASE("the n-th best token alone is that of a full sort, in rows long and short, even or full of ties") {
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  std::vector<RankedToken> scratch;
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<float> logits(1 + random() % (trial % 2 == 0 ? 400 : 9000));
    for (float& logit : logits) {
      logit = random() % 40 == 0 ? -testing::kInf : normal(random);
      logit = trial % 5 == 0 ? std::round(logit) : trial % 7 == 0 ? 1.0F : logit;
    }
    if (trial % 3 == 0) {
      std::sort(logits.begin(), logits.end());  // a sample of the row may be as lopsided as it likes
    }
    if (trial % 11 == 0) {  // the sample sees nothing of most tokens
      for (std::size_t i = 0; i < 512; ++i) {
        logits[i * logits.size() / 512] = 9.0F;
      }
    }
    const LogitRow row(logits.data(), static_cast<std::int32_t>(logits.size()));
    RowScan scan;
    scan_row(row, scan);
    const std::vector<std::int32_t> order = testing::order_of(logits);
    for (std::int32_t n = 1; n <= row.size(); n += static_cast<std::int32_t>(1 + random() % (1 + logits.size() / 9))) {
      const RankedToken got = nth_best(row, scan, n, scratch);
      REQUIRE(got.id == order[n - 1]);
      REQUIRE(got.logit == logits[order[n - 1]]);
    }
  }
}

TEST_CASE("a token's rank is its place in a full sort") {
  std::mt19937 random(2);
  for (int trial = 0; trial < 300; ++trial) {
    const std::vector<float> logits = testing::random_logits(random);
    const LogitRow row(logits.data(), static_cast<std::int32_t>(logits.size()));
    const std::vector<std::int32_t> order = testing::order_of(logits);
    const auto place = static_cast<std::int32_t>(random() % logits.size());
    CHECK(rank_of(row, order[place]) == place + 1);
  }
}

TEST_CASE("minus zero ties with zero") {
  const std::vector<float> logits = {-1.0F, -0.0F, 0.0F};
  const LogitRow row(logits.data(), 3);
  CHECK(rank_of(row, 1) == 1);
  CHECK(rank_of(row, 2) == 2);
}

}  // namespace
}  // namespace fastpaged
