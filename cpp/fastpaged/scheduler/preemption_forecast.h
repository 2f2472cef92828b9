// PreemptionForecast: which way to preempt a group will turn out cheaper. What it holds is known; how much of that will
// still be in the prefix cache when it comes back depends on what others do meanwhile, and is learnt from those that
// came back before.
#pragma once

#include <cstdint>

#include "fastpaged/scheduler/scheduler_policy.h"

namespace fastpaged {

// What a group has. Tokens are computed ones, each once, however many branches share it.
struct PreemptionStakes {
  std::int64_t num_blocks = 0;         // that it holds
  std::int64_t num_blocks_out = 0;     // of them, that have no copy on the host yet
  std::int64_t num_lost_tokens = 0;    // in blocks that cannot be found again
  std::int64_t num_cached_tokens = 0;  // in cached blocks that it alone holds: they may be found again
  std::int64_t num_safe_tokens = 0;    // in cached blocks that somebody else holds, too: they will be

  bool operator==(const PreemptionStakes&) const = default;
};

class PreemptionForecast {
 public:
  // Seconds. Equal: recompute.
  [[nodiscard]] double cost_of_swap(const PreemptionStakes& stakes, const PreemptionCosts& costs) const;
  [[nodiscard]] double cost_of_recompute(const PreemptionStakes& stakes, const PreemptionCosts& costs,
                                         std::int32_t block_size) const;
  // A group that was to be recomputed came back, and found so many tokens, on the device and on the host.
  void see_found(const PreemptionStakes& stakes, std::int64_t on_device, std::int64_t on_host);
  // A swapped group of so many blocks came back, of which so many had to be copied in.
  void see_swapped_in(std::int64_t num_blocks, std::int64_t num_copied);
  // A group with such stakes was swapped. What was learnt of recomputing fades, so that it is tried again.
  void see_swapped_out(const PreemptionStakes& stakes);

 private:
  // At first all is hoped to be found: who is never tried is never learnt of.
  static constexpr double kHoped = 256;  // tokens; blocks
  static constexpr double kFades = 15.0 / 16;
  static constexpr double kFadesUntried = 63.0 / 64;

  double cached_ = 0, found_on_device_ = 0, found_on_host_ = 0;  // tokens, fading
  double swapped_ = 0, copied_in_ = 0;                           // blocks, fading
};

}  // namespace fastpaged
