#include "fastpaged/scheduler/preemption_forecast.h"

#include <algorithm>

namespace fastpaged {

double PreemptionForecast::cost_of_swap(const PreemptionStakes& stakes, const PreemptionCosts& costs) const {
  const double share_in = (copied_in_ + kHoped) / (swapped_ + kHoped);  // at first all of it
  return static_cast<double>(stakes.num_blocks_out) * costs.seconds_per_block_out +
         static_cast<double>(stakes.num_blocks) * share_in * costs.seconds_per_block_in;
}

double PreemptionForecast::cost_of_recompute(const PreemptionStakes& stakes, const PreemptionCosts& costs,
                                             std::int32_t block_size) const {
  const auto cached = static_cast<double>(stakes.num_cached_tokens);
  const double on_device = cached * (found_on_device_ + kHoped) / (cached_ + kHoped);
  const double on_host = cached * found_on_host_ / (cached_ + kHoped);
  const double computed = static_cast<double>(stakes.num_lost_tokens) + std::max(0.0, cached - on_device - on_host);
  return computed * costs.seconds_per_token +
         on_host / block_size * (costs.seconds_per_block_out + costs.seconds_per_block_in);
}

void PreemptionForecast::see_found(const PreemptionStakes& stakes, std::int64_t on_device, std::int64_t on_host) {
  if (stakes.num_cached_tokens == 0) {
    return;
  }
  const std::int64_t device = std::clamp<std::int64_t>(on_device - stakes.num_safe_tokens, 0, stakes.num_cached_tokens);
  const std::int64_t host = std::min(on_host, stakes.num_cached_tokens - device);
  cached_ = kFades * cached_ + static_cast<double>(stakes.num_cached_tokens);
  found_on_device_ = kFades * found_on_device_ + static_cast<double>(device);
  found_on_host_ = kFades * found_on_host_ + static_cast<double>(host);
}

void PreemptionForecast::see_swapped_in(std::int64_t num_blocks, std::int64_t num_copied) {
  swapped_ = kFades * swapped_ + static_cast<double>(num_blocks);
  copied_in_ = kFades * copied_in_ + static_cast<double>(num_copied);
}

void PreemptionForecast::see_swapped_out(const PreemptionStakes& stakes) {
  if (stakes.num_cached_tokens > 0) {
    cached_ *= kFadesUntried;
    found_on_device_ *= kFadesUntried;
    found_on_host_ *= kFadesUntried;
  }
}

}  // namespace fastpaged
