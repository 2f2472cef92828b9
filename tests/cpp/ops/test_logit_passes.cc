#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "fastpaged/ops/logit_passes.h"
#include "fastpaged/ops/op_table.h"

namespace fastpaged {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Block after block of normal logits, some of them -inf, with many ties.
std::vector<float> random_blocks(std::mt19937& random, int num_blocks) {
  std::normal_distribution<float> normal(0.0F, 20.0F);
  std::vector<float> logits(static_cast<std::size_t>(num_blocks) * kLogitBlock);
  for (float& logit : logits) {
    logit = random() % 50 == 0 ? -kInf : random() % 3 == 0 ? std::round(normal(random)) : normal(random);
  }
  return logits;
}

struct Weighed {
  std::vector<float> weights;
  std::vector<double> sums;
};

Weighed weigh(const LogitPasses& passes, const std::vector<float>& logits, float temperature, float cutoff = -kInf,
              std::int32_t last_tie = std::numeric_limits<std::int32_t>::max()) {
  const std::int64_t num_blocks = std::ssize(logits) / kLogitBlock;
  std::vector<float> maxima(static_cast<std::size_t>(num_blocks));
  passes.block_maxima(logits.data(), num_blocks, maxima.data());
  Weighed result{std::vector<float>(logits.size()), std::vector<double>(static_cast<std::size_t>(num_blocks), -1.0)};
  passes.weigh({.logits = logits.data(),
                .block_max = maxima.data(),
                .num_blocks = num_blocks,
                .max = *std::max_element(maxima.begin(), maxima.end()),
                .temperature = temperature,
                .cutoff = cutoff,
                .last_tie = last_tie,
                .weights = result.weights.data(),
                .block_sums = result.sums.data()});
  return result;
}

float exp_of(float z) {
  std::vector<float> logits(kLogitBlock, z);
  logits[0] = 0.0F;
  return weigh(scalar_logit_passes, logits, 1.0F).weights[1];
}

TEST_CASE("a weight stays within its stated error of exp from -87 to 0") {
  const std::uint32_t last = std::bit_cast<std::uint32_t>(-87.0F);
  double worst = 0.0;
  for (std::uint32_t bits = std::bit_cast<std::uint32_t>(-0.0F); bits <= last; bits += 9973) {
    const float z = std::bit_cast<float>(bits);
    const double exact = std::exp(static_cast<double>(z));
    worst = std::max(worst, std::fabs(static_cast<double>(exp_of(z)) - exact) / exact);
  }
  CHECK(worst < 0x1p-23);
  CHECK(worst > 0x1p-26);  // float32 cannot be that good: the comparison itself works
}

TEST_CASE("a weight is exactly 1 at the maximum and exactly 0 where exp is below that of -87") {
  CHECK(exp_of(0.0F) == 1.0F);
  CHECK(exp_of(-0.0F) == 1.0F);
  CHECK(exp_of(-87.0F) > 0.0F);
  CHECK(exp_of(std::nextafter(-87.0F, -100.0F)) == 0.0F);
  CHECK(exp_of(std::numeric_limits<float>::lowest()) == 0.0F);
  CHECK(exp_of(-kInf) == 0.0F);
}

TEST_CASE("every table weighs, sums and counts to the same bits") {
  std::mt19937 random(1);
  for (int trial = 0; trial < 100; ++trial) {
    const std::vector<float> logits = random_blocks(random, static_cast<int>(1 + random() % 4));
    const float temperature = trial % 3 == 0 ? 1.0F : std::ldexp(1.0F + static_cast<float>(random() % 999) / 999, 1);
    const float cutoff = trial % 4 == 0 ? -kInf : logits[random() % logits.size()];
    const auto last_tie = static_cast<std::int32_t>(random() % logits.size());
    const Weighed expected = weigh(scalar_logit_passes, logits, temperature, cutoff, last_tie);
    for (const std::string& isa : supported_isas()) {
      CAPTURE(isa);
      const LogitPasses& passes = *op_table(isa).logit_passes;
      const Weighed got = weigh(passes, logits, temperature, cutoff, last_tie);
      CHECK(got.weights == expected.weights);
      CHECK(got.sums == expected.sums);
      const auto size = static_cast<std::int64_t>(random() % (logits.size() + 1));
      const auto num_from = std::count_if(logits.begin(), logits.begin() + size, [&](float x) { return x >= cutoff; });
      CHECK(passes.count_from(logits.data(), size, cutoff) == num_from);
    }
  }
}

TEST_CASE("a cutoff keeps what is better, and of its ties those up to the last") {
  std::vector<float> logits(2 * std::size_t{kLogitBlock}, 1.0F);
  logits[3] = 2.0F;
  logits[200] = 0.5F;
  for (const std::string& isa : supported_isas()) {
    for (const std::int32_t last_tie : {0, 3, 127, 128, 130, 199, 200, 255, 256}) {
      CAPTURE(isa);
      CAPTURE(last_tie);
      const Weighed got = weigh(*op_table(isa).logit_passes, logits, 1.0F, 1.0F, last_tie);
      for (std::int32_t id = 0; id < 2 * kLogitBlock; ++id) {
        REQUIRE((got.weights[id] > 0.0F) == (logits[id] > 1.0F || (logits[id] == 1.0F && id <= last_tie)));
      }
    }
  }
}

TEST_CASE("sums are the same whether the weights are kept or not, and blocks below the cutoff are left alone") {
  std::mt19937 random(2);
  std::vector<float> logits = random_blocks(random, 3);
  std::fill(logits.begin() + kLogitBlock, logits.begin() + std::ptrdiff_t{2} * kLogitBlock, -200.0F);
  std::vector<float> maxima(3);
  for (const std::string& isa : supported_isas()) {
    CAPTURE(isa);
    const LogitPasses& passes = *op_table(isa).logit_passes;
    CHECK_FALSE(passes.block_maxima(logits.data(), 3, maxima.data()));
    std::vector<float> weights(logits.size(), -1.0F);
    std::vector<double> kept(3);
    std::vector<double> sums(3);
    WeighParams params{.logits = logits.data(),
                       .block_max = maxima.data(),
                       .num_blocks = 3,
                       .max = *std::max_element(maxima.begin(), maxima.end()),
                       .cutoff = -199.0F,
                       .last_tie = 0,
                       .weights = weights.data(),
                       .block_sums = kept.data()};
    passes.weigh(params);
    params.weights = nullptr;
    params.block_sums = sums.data();
    passes.weigh(params);
    CHECK(kept == sums);
    CHECK(kept[1] == 0.0);
    CHECK(weights[kLogitBlock] == -1.0F);
  }
}

TEST_CASE("every table finds each block's maximum, and a NaN wherever it is") {
  std::mt19937 random(3);
  std::vector<float> logits = random_blocks(random, 2);
  for (const std::string& isa : supported_isas()) {
    CAPTURE(isa);
    const auto block_maxima = op_table(isa).logit_passes->block_maxima;
    std::vector<float> maxima(2);
    CHECK_FALSE(block_maxima(logits.data(), 2, maxima.data()));
    CHECK(maxima[0] == *std::max_element(logits.begin(), logits.begin() + kLogitBlock));
    CHECK(maxima[1] == *std::max_element(logits.begin() + kLogitBlock, logits.end()));
    for (float& logit : logits) {
      const float before = logit;
      logit = std::numeric_limits<float>::quiet_NaN();
      REQUIRE(block_maxima(logits.data(), 2, maxima.data()));
      logit = before;
    }
  }
}

}  // namespace
}  // namespace fastpaged
