#include <doctest/doctest.h>

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
