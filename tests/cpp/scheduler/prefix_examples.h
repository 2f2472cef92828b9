// What examples of the prefix cache and of pins are written with.
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "scheduler/examples.h"

namespace fastpaged::test {

using Tokens = std::vector<TokenId>;
using Cached = std::vector<std::pair<GroupId, std::int32_t>>;

inline SchedulerConfig caching(std::int32_t num_blocks = 100) {
  SchedulerConfig config = roomy();  // blocks of four tokens, 64 tokens a step
  config.num_blocks = num_blocks;
  config.prefix_caching = true;
  config.max_pinned_blocks = 20;
  return config;
}

// first, first + 1, ...: texts that begin alike only if they begin with the same token.
inline Tokens counting(TokenId first, std::int32_t count) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline Tokens joined(Tokens tokens, const Tokens& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

inline NewRequest text(GroupId id, Tokens prompt, std::int32_t max_tokens = 1) {
  NewRequest request{.id = id};
  request.prompt_token_ids = std::move(prompt);
  request.stop = {max_tokens, {}};
  return request;
}

// Computes a text to the end and leaves its blocks to the cache.
inline void warm(Scheduler& scheduler, GroupId id, Tokens prompt, std::string root = {}) {
  NewRequest request = text(id, std::move(prompt));
  request.cache_root = std::move(root);
  scheduler.add(std::move(request));
  while (scheduler.has_unfinished()) {
    run_steps(scheduler, 1);
  }
}

inline std::vector<BlockId> blocks_of(const Scheduler& scheduler, GroupId id, std::size_t branch = 0) {
  const std::span<const BlockId> blocks = scheduler.group(id).sequences.at(branch)->table().blocks();
  return {blocks.begin(), blocks.end()};
}

}  // namespace fastpaged::test
