// How the real scheduler is held against the slow one, part by part.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <ranges>
#include <span>
#include <vector>

#include "fastpaged/scheduler/scheduler.h"
#include "scheduler/slow_memory.h"

namespace fastpaged::test {

inline std::vector<BlockId> all_free(const BlockPool& pool) {
  std::vector<BlockId> blocks = pool.free_blocks();
  const std::vector<BlockId> cached = pool.cached_free_blocks();
  blocks.insert(blocks.end(), cached.begin(), cached.end());
  return blocks;
}

inline void check_event(const SequenceEvent& event, const SequenceEvent& expected) {
  REQUIRE(event.kind == EventKind::kSample);
  REQUIRE(event.group_id == expected.group_id);
  REQUIRE(event.sequence_id == expected.sequence_id);
  REQUIRE(event.parent_id == expected.parent_id);
  REQUIRE(event.branch == expected.branch);
  REQUIRE(event.num_scores == expected.num_scores);
  REQUIRE((event.num_scores == 0 || event.score_row == expected.score_row));
  REQUIRE(event.has_token == expected.has_token);
  REQUIRE((!event.has_token || event.sample_row == expected.sample_row));
  REQUIRE((!event.has_token || event.token_id == expected.token_id));
  REQUIRE(event.finished == expected.finished);
  REQUIRE(event.group_finished == expected.group_finished);
  REQUIRE((!event.finished || event.finish_reason == expected.finish_reason));
}

inline void check_group(const SequenceGroup& group, const SlowGroup& expected) {
  REQUIRE(group.state == expected.state);
  REQUIRE(group.aged == expected.aged);
  REQUIRE(group.num_preemptions == expected.num_preemptions);
  REQUIRE(group.num_tokens_recomputed == expected.num_recomputed);
  REQUIRE(group.num_blocks_swapped_out == expected.num_swapped_out);
  REQUIRE(group.num_blocks_swapped_in == expected.num_swapped_in);
  REQUIRE(group.num_sequences() == expected.size());
  std::size_t index = 0;
  for (const auto& [id, branch] : expected.branches) {
    const Sequence& sequence = *group.sequences[index++];
    REQUIRE(sequence.id() == id);
    REQUIRE(sequence.branch() == branch.branch);
    REQUIRE(sequence.num_prompt_tokens() == branch.prompt);
    REQUIRE(std::ranges::equal(sequence.token_ids(), branch.tokens));
    REQUIRE(sequence.num_computed_tokens() == branch.computed);
    REQUIRE(branch.prompt - 1 - sequence.num_scored() == std::ssize(branch.unscored));
    REQUIRE(std::ranges::equal(sequence.table().blocks(), branch.blocks));
    REQUIRE((sequence.rebuild().from != nullptr) == branch.waits_for.has_value());
    if (branch.waits_for) {
      REQUIRE(sequence.rebuild().from->id() == branch.waits_for);
      REQUIRE(sequence.rebuild().num_tokens == branch.common);
    }
  }
  // Rebuilding its tree, a group never needs more blocks than it held.
  REQUIRE((expected.size() == 1 || expected.decodes() || std::ssize(expected.held()) <= expected.rebuild_limit));
}

// What can be found, and under what.
inline void check_cached(const KVCacheManager& kv_cache, const SlowPrefixes& expected) {
  const PrefixCache& cache = kv_cache.prefix_cache();
  const auto node_of = [&](SlowPlace place) { return place.on_host ? kv_cache.host_node(place.block) : place.block; };
  REQUIRE(cache.num_cached() == std::ssize(expected.entries));
  for (const CachedText& entry : expected.entries) {
    const PrefixCache::Node node = node_of(entry.place);
    REQUIRE(cache.holds(node));
    const std::span<const TokenId> tokens = cache.tokens(node);
    REQUIRE(std::ranges::equal(tokens, std::span(entry.text).last(tokens.size())));
    const std::vector<TokenId> before = SlowPrefixes::first(entry.text, std::ssize(entry.text) - std::ssize(tokens));
    if (before.empty()) {
      REQUIRE(cache.find_root(entry.root) == cache.parent(node));
    } else {
      REQUIRE(cache.parent(node) == node_of(expected.find(entry.root, before).value()));
    }
  }
}

inline void check_blocks(const Scheduler& scheduler, const SlowMemory& expected) {
  const BlockPool& device = scheduler.kv_cache().device_pool();
  const BlockPool& host = scheduler.kv_cache().host_pool();
  REQUIRE(std::ranges::equal(all_free(device), expected.device));
  REQUIRE(std::ranges::equal(all_free(host), expected.host));
  for (BlockId block = 0; block < device.num_blocks(); ++block) {
    REQUIRE(device.ref_count(block) == expected.holders(block));
    REQUIRE(device.is_cached(block) == expected.cached.contains({false, block}));
  }
  for (BlockId block = 0; block < host.num_blocks(); ++block) {
    REQUIRE(host.ref_count(block) == expected.holders(block, true));
    REQUIRE(host.is_cached(block) == expected.cached.contains({true, block}));
  }
  check_cached(scheduler.kv_cache(), expected.cached);
  const std::vector<PinnedPrefix> pins = scheduler.pins();
  REQUIRE(pins.size() == expected.pins.size());
  for (const PinnedPrefix& pin : pins) {
    REQUIRE(pin.num_held_blocks == std::ssize(expected.pins.at(pin.id).blocks));
  }
}

}  // namespace fastpaged::test
