#include "load.h"

#include <benchmark/benchmark.h>

#include <chrono>
#include <utility>

namespace fastpaged::bench {

void Load::add(GroupId id, std::int32_t num_prompt_tokens, std::int32_t max_tokens) {
  NewRequest request;
  request.id = id;
  request.prompt_token_ids.assign(num_prompt_tokens, 7);
  request.prompt_token_ids.front() = static_cast<TokenId>(id);  // no two share a block
  request.stop = {max_tokens, {2}};
  scheduler_.add(std::move(request));
}

StepTimes Load::step() {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const SchedulerOutput plan = scheduler_.schedule();
  benchmark::DoNotOptimize(&builder_.build(plan));
  const Clock::time_point planned = Clock::now();
  tokens_.assign(plan.num_results, {.token_id = 9, .ok = true});
  const Clock::time_point sampled = Clock::now();
  benchmark::DoNotOptimize(scheduler_.update(plan, tokens_));
  const Clock::time_point updated = Clock::now();
  return {.plan_s = std::chrono::duration<double>(planned - start).count(),
          .update_s = std::chrono::duration<double>(updated - sampled).count(),
          .preempts = !plan.preempted.empty()};
}

}  // namespace fastpaged::bench
