// What preemption will cost, learnt from what it has cost.
#include <doctest/doctest.h>

#include "fastpaged/scheduler/preemption_forecast.h"

namespace fastpaged::test {
namespace {

constexpr PreemptionCosts kCosts = {
    .seconds_per_token = 1.0, .seconds_per_block_out = 3.0, .seconds_per_block_in = 5.0};
constexpr std::int32_t kBlockSize = 4;

// 40 tokens in cached blocks of its own, 3 that are lost, 8 that others hold.
constexpr PreemptionStakes kStakes = {
    .num_blocks = 13, .num_blocks_out = 13, .num_lost_tokens = 3, .num_cached_tokens = 40, .num_safe_tokens = 8};

double recompute(const PreemptionForecast& forecast) {
  return forecast.cost_of_recompute(kStakes, kCosts, kBlockSize);
}

}  // namespace

TEST_CASE("at first all that is cached is hoped to be found on the device, and all that is swapped copied both ways") {
  const PreemptionForecast forecast;
  CHECK(recompute(forecast) == 3.0);
  CHECK(forecast.cost_of_swap(kStakes, kCosts) == 13 * 8.0);
  PreemptionStakes copied = kStakes;
  copied.num_blocks_out = 3;
  CHECK(forecast.cost_of_swap(copied, kCosts) == 3 * 3.0 + 13 * 5.0);
}

TEST_CASE("what is found is learnt, on the device and on the host, less what others hold") {
  PreemptionForecast forecast;
  for (int i = 0; i < 500; ++i) {
    forecast.see_found(kStakes, 8 + 10, 20);  // of 40: a quarter, and a half
  }
  // 3 and 10 tokens to compute, and 5 blocks to copy out and in: nearly, for some hope is left.
  CHECK(recompute(forecast) > 0.6 * (13 + 5 * 8.0));
  CHECK(recompute(forecast) < 13 + 5 * 8.0);
  PreemptionForecast nothing_found;
  for (int i = 0; i < 500; ++i) {
    nothing_found.see_found(kStakes, 8, 0);
  }
  CHECK(recompute(nothing_found) > 0.6 * 43);
  CHECK(recompute(nothing_found) < 43);
}

TEST_CASE("more than there was is not found, and what had nothing in the cache says nothing of it") {
  PreemptionForecast forecast;
  forecast.see_found(kStakes, 1000, 1000);
  CHECK(recompute(forecast) == 3.0);
  forecast.see_found({.num_blocks = 3, .num_lost_tokens = 9}, 0, 0);
  CHECK(recompute(forecast) == 3.0);
}

TEST_CASE("what was learnt fades while the other way is gone, and hope comes back") {
  PreemptionForecast forecast;
  for (int i = 0; i < 100; ++i) {
    forecast.see_found(kStakes, 0, 0);
  }
  double last = recompute(forecast);
  for (int i = 0; i < 20; ++i) {
    for (int j = 0; j < 50; ++j) {
      forecast.see_swapped_out(kStakes);
    }
    CHECK(recompute(forecast) < last);
    last = recompute(forecast);
  }
  CHECK(last == doctest::Approx(3.0).epsilon(0.01));
  const double before = recompute(forecast);
  forecast.see_swapped_out({.num_blocks = 3, .num_lost_tokens = 9});
  CHECK(recompute(forecast) == before);
}

TEST_CASE("blocks that need not be copied in are learnt, too") {
  PreemptionForecast forecast;
  for (int i = 0; i < 500; ++i) {
    forecast.see_swapped_in(13, 0);
  }
  CHECK(forecast.cost_of_swap(kStakes, kCosts) < 13 * 3.0 + 0.6 * 13 * 5.0);
  CHECK(forecast.cost_of_swap(kStakes, kCosts) > 13 * 3.0);
}

}  // namespace fastpaged::test
