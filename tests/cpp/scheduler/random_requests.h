// Random configurations and requests, small enough that everything is scarce.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "fastpaged/scheduler/scheduler.h"
#include "random.h"

namespace fastpaged::test {

inline PreemptionMode random_mode(Random& random) {
  return static_cast<PreemptionMode>(random.between(0, 3));
}

// Whole numbers of the same order of magnitude, so that either may be cheaper, or neither.
inline PreemptionCosts random_costs(Random& random) {
  const auto seconds = [&] { return static_cast<double>(random.between(0, 3)); };
  return {.seconds_per_token = seconds(), .seconds_per_block_out = seconds(), .seconds_per_block_in = seconds()};
}

inline SchedulerPolicy random_policy(Random& random) {
  SchedulerPolicy policy;
  if (random.once_in(4)) {
    return SchedulerPolicy::paper_2023();
  }
  policy.preemption_mode = random_mode(random);
  policy.resume_grace_steps = random.once_in(2) ? random.between(1, 9) : 0;
  policy.chunked_prefill = !random.once_in(4);
  policy.long_prefill_token_threshold = policy.chunked_prefill && random.once_in(2) ? random.between(1, 4) : 0;
  policy.watermark = 0.1 * random.between(0, 4);
  policy.counts_running_needs = random.once_in(2);
  policy.block_per_branch = random.once_in(3);
  policy.swapped_before_waiting = random.once_in(3);
  policy.by_priority = !policy.swapped_before_waiting && random.once_in(2);
  policy.ageing_steps = random.once_in(2) ? random.between(0, 12) : 0;
  policy.prefill_share = random.once_in(2) ? random.between(1, 8) : 0;
  return policy;
}

inline SchedulerConfig random_config(Random& random, const SchedulerPolicy& policy) {
  SchedulerConfig config;
  config.policy = policy;
  config.costs = random_costs(random);
  config.block_size = random.between(1, 4);
  config.num_blocks = random.between(3, 12);
  config.num_host_blocks = random.between(0, 12);
  config.max_num_seqs = random.between(1, 8);
  config.max_model_len = random.between(2, 40);
  config.max_num_batched_tokens = random.between(1, 12);
  config.max_num_rows = random.once_in(3) ? 0 : config.max_num_seqs + random.between(0, 4);
  if (!policy.chunked_prefill) {
    config.max_num_batched_tokens += config.max_model_len;
  }
  config.prefix_caching = !random.once_in(3);
  config.max_pinned_blocks = config.prefix_caching ? random.between(0, config.num_blocks + 2) : 0;
  config.host_prefix_tier = !random.once_in(3);
  config.prefix_hash_mask = random.once_in(2) ? 1 : ~std::uint64_t{0};
  return config;
}

// Few tokens, and mostly those of one of two texts, up to somewhere: many prompts begin alike.
inline std::vector<TokenId> random_prompt(Random& random, std::int32_t length) {
  const std::int32_t text = random.between(0, 2);
  const std::int32_t alike = text == 2 ? 0 : random.once_in(2) ? length : random.between(0, length);
  std::vector<TokenId> prompt;
  for (std::int32_t i = 0; i < length; ++i) {
    prompt.push_back(i < alike ? (i * i / 3 + text) % 4 : random.between(0, 3));
  }
  return prompt;
}

inline std::string random_root(Random& random) {
  return random.once_in(4) ? "salt" : "";
}

// At most as many as may run together.
inline std::int32_t random_num_samples(Random& random, const SchedulerConfig& config) {
  const std::int32_t most = std::min(config.max_num_seqs, config.max_num_batched_tokens);
  return random.once_in(3) ? random.between(1, std::min(most, 6)) : 1;
}

inline NewRequest random_request(Random& random, GroupId id, const SchedulerConfig& config) {
  NewRequest request{.id = id};
  const std::int32_t longest = std::min(config.max_model_len - 1, config.num_blocks * config.block_size);
  const std::int32_t length = random.once_in(3) ? random.between(1, longest) : random.between(1, (longest + 2) / 3);
  request.prompt_token_ids = random_prompt(random, length);
  request.stop.max_tokens = random.between(1, 20);
  if (random.once_in(2)) {
    request.stop.stop_token_ids = {random.between(25, 49), random.between(0, 24)};
  }
  request.sampling.seed = static_cast<std::uint64_t>(random.between(1, 3));  // who speaks alike shares answers too
  request.num_samples = random_num_samples(random, config);
  request.cache_root = random_root(random);
  request.skip_prefix_cache = random.once_in(10);
  if (random.once_in(4)) {
    request.sampling.num_prompt_logprobs = 0;
  }
  return request;
}

// Some are more important than others, and some in a hurry.
inline void set_random_wishes(Random& random, NewRequest& request, Nanoseconds now) {
  request.priority = random.between(-1, 2);
  if (random.once_in(8)) {
    request.deadline = now + random.between(0, 60);
  }
  if (random.once_in(8)) {
    request.queue_deadline = now + random.between(0, 20);
  }
}

}  // namespace fastpaged::test
