#include <doctest/doctest.h>

#include <random>

#include "fastpaged/sampling/token_weights.h"
#include "sampling/model.h"

namespace fastpaged {
namespace {

struct Weighted {
  Weighted(const std::vector<float>& logits, float temperature, const Cutoff& cutoff = keep_all())
      : row(logits.data(), static_cast<std::int32_t>(logits.size())) {
    scan_row(row, scan);
    weights.assign({row, scan, temperature}, cutoff);
  }
  LogitRow row;
  RowScan scan;
  TokenWeights weights;
};

// Walks the whole distribution: every token's interval of u, from the float64 model, is tried in its middle and just
// inside both of its ends.
TEST_CASE("each token is chosen on exactly its own share of u") {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const std::vector<float> logits = testing::random_logits(random);
    const float temperature = testing::random_params(random).temperature;
    const Weighted weighted(logits, temperature);
    const std::vector<double> model = testing::weights_of(logits, temperature);
    const double total = std::accumulate(model.begin(), model.end(), 0.0);
    CHECK(weighted.weights.total() == doctest::Approx(total).epsilon(2e-5));
    constexpr double kRounding = 2e-5;  // float32 weights at scaled logits down to -87
    double before = 0.0;
    for (std::size_t id = 0; id < logits.size(); ++id) {
      const double after = before + model[id] / total;
      if (after - before > 2 * kRounding) {
        REQUIRE(weighted.weights.choose(before + kRounding) == static_cast<TokenId>(id));
        REQUIRE(weighted.weights.choose((before + after) / 2) == static_cast<TokenId>(id));
        REQUIRE(weighted.weights.choose(after - kRounding) == static_cast<TokenId>(id));
      }
      before = after;
    }
  }
}

TEST_CASE("equal weights split u evenly to the last bit") {
  const std::vector<float> logits(256, 3.0F);
  const Weighted weighted(logits, 0.7F);
  CHECK(weighted.weights.total() == 256.0);
  for (TokenId id = 0; id < 256; ++id) {
    CHECK(weighted.weights.choose(id / 256.0) == id);
    CHECK(weighted.weights.choose(std::nextafter((id + 1) / 256.0, 0.0)) == id);
  }
}

TEST_CASE("a token of weight zero is never chosen, at no end of u") {
  std::vector<float> logits(700, -testing::kInf);
  logits[130] = 0.0F;
  logits[131] = -1000.0F;
  logits[400] = -1.0F;
  const Weighted weighted(logits, 1.0F);
  CHECK(weighted.weights.choose(0x1p-53) == 130);
  CHECK(weighted.weights.choose(1.0 - 0x1p-53) == 400);
}

TEST_CASE("u below 1 always finds a token, whatever the rounding of the sums") {
  std::mt19937 random(3);
  for (int trial = 0; trial < 500; ++trial) {
    const std::vector<float> logits = testing::random_logits(random);
    const Weighted weighted(logits, 1.0F);
    const TokenId id = weighted.weights.choose(1.0 - 0x1p-53);
    REQUIRE(id < weighted.row.size());
    CHECK(logits[id] >= weighted.scan.max - 87.0F);
  }
}

TEST_CASE("a cutoff given first or later leaves the same bits") {
  std::mt19937 random(2);
  for (int trial = 0; trial < 200; ++trial) {
    const std::vector<float> logits = testing::random_logits(random);
    const std::vector<std::int32_t> order = testing::order_of(logits);
    const std::int32_t last = order[random() % order.size()];
    const Cutoff cutoff = {logits[last], last};
    Weighted first(logits, 0.9F, cutoff);
    Weighted later(logits, 0.9F);
    later.weights.restrict({later.row, later.scan, 0.9F}, cutoff);
    REQUIRE(first.weights.total() == later.weights.total());
    for (std::int32_t b = 0; b < first.row.num_blocks(); ++b) {
      REQUIRE(first.weights.block_sum(b) == later.weights.block_sum(b));
    }
  }
}

}  // namespace
}  // namespace fastpaged
