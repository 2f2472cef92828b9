#include "fastpaged/scheduler/scheduler_policy.h"

#include <cmath>
#include <string>

#include "fastpaged/base/check.h"

namespace fastpaged {

SchedulerPolicy SchedulerPolicy::paper_2023() {
  SchedulerPolicy policy;
  policy.preemption_mode = PreemptionMode::kByBranches;
  policy.chunked_prefill = false;
  policy.watermark = 0.01;
  policy.counts_running_needs = false;
  policy.block_per_branch = true;
  policy.swapped_before_waiting = true;
  return policy;
}

void validate(const SchedulerPolicy& policy) {
  require(policy.watermark >= 0.0 && policy.watermark < 1.0,
          [&] { return "watermark must be in [0, 1), got " + std::to_string(policy.watermark); });
  require(policy.long_prefill_token_threshold >= 0, [&] {
    return "long_prefill_token_threshold must be >= 0, got " + std::to_string(policy.long_prefill_token_threshold);
  });
  const auto require_not_negative = [](std::int32_t given, const char* name) {
    require(given >= 0, [&] { return std::string(name) + " must be >= 0, got " + std::to_string(given); });
  };
  require_not_negative(policy.resume_grace_steps, "resume_grace_steps");
  require_not_negative(policy.ageing_steps, "ageing_steps");
  require_not_negative(policy.prefill_share, "prefill_share");
  require(!policy.by_priority || !policy.swapped_before_waiting, [] {
    return std::string("swapped_before_waiting must be false with by_priority: there is one line, by rank");
  });
  require(policy.chunked_prefill || policy.long_prefill_token_threshold == 0, [&] {
    return "long_prefill_token_threshold must be 0 without chunked_prefill, got " +
           std::to_string(policy.long_prefill_token_threshold);
  });
}

void validate(const PreemptionCosts& costs) {
  const auto require_seconds = [](double given, const char* name) {
    require(std::isfinite(given) && given >= 0.0,
            [&] { return std::string(name) + " must be seconds >= 0, got " + std::to_string(given); });
  };
  require_seconds(costs.seconds_per_token, "seconds_per_token");
  require_seconds(costs.seconds_per_block_out, "seconds_per_block_out");
  require_seconds(costs.seconds_per_block_in, "seconds_per_block_in");
}

}  // namespace fastpaged
