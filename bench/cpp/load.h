// Load: a scheduler full of requests, and its builder, stepped without a model.
#pragma once

#include <cstdint>
#include <vector>

#include "fastpaged/scheduler/batch_builder.h"
#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged::bench {

inline constexpr std::int32_t kBlockSize = 16;

struct StepTimes {
  double plan_s = 0.0;    // schedule() and build()
  double update_s = 0.0;  // update()
  bool preempts = false;
};

class Load {
 public:
  explicit Load(const SchedulerConfig& config) : scheduler_(config), builder_(scheduler_) {}

  void add(GroupId id, std::int32_t num_prompt_tokens, std::int32_t max_tokens);
  StepTimes step();
  [[nodiscard]] const Scheduler& scheduler() const { return scheduler_; }

 private:
  Scheduler scheduler_;
  BatchBuilder builder_;
  std::vector<SampledToken> tokens_;
};

}  // namespace fastpaged::bench
