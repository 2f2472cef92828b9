// SlowPrefixCache: what KVCacheManager does with prefixes, said plainly. Tables go by the id of their owner.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "fastpaged/kv_cache/prefix_cache.h"
#include "kv_cache/slow_kv_cache.h"

namespace fastpaged::test {

struct SlowMatch {
  std::vector<BlockId> blocks;
  std::int32_t num_in_use = 0;
  std::optional<BlockId> partial_block;
  std::int32_t num_partial_tokens = 0;
};

class SlowPrefixCache : public SlowKVCache {
 public:
  using SlowKVCache::SlowKVCache;

  [[nodiscard]] SlowMatch match(const SlowText& text, std::int32_t max_tokens) const {
    SlowMatch match;
    const std::size_t wanted = std::min(text.size(), static_cast<std::size_t>(max_tokens));
    std::size_t done = 0;
    for (const std::size_t n = device.tokens_per_block; done + n <= wanted; done += n) {
      const std::optional<BlockId> block = device.find(text.first(done + n));
      if (!block) {
        break;
      }
      match.blocks.push_back(*block);
      match.num_in_use += device.holders.contains(*block) ? 1 : 0;
    }
    // The next block itself, if it is there and only not wanted whole; else the child that agrees the longest.
    const std::size_t end = std::min(wanted, done + device.tokens_per_block);
    std::vector<BlockId> candidates = device.children(text.first(done));
    candidates.resize(std::min(candidates.size(), std::size_t{PrefixCache::kMaxChildrenTried}));
    const std::optional<BlockId> next = text.size() < done + device.tokens_per_block
                                            ? std::nullopt
                                            : device.find(text.first(done + device.tokens_per_block));
    if (next) {
      candidates = {*next};
    }
    for (const BlockId child : candidates) {
      std::int32_t num_equal = 0;
      for (std::size_t i = done; i < end && device.cached.at(child).text.tokens[i] == text.tokens[i]; ++i) {
        ++num_equal;
      }
      if (num_equal > match.num_partial_tokens) {
        match.partial_block = child;
        match.num_partial_tokens = num_equal;
      }
    }
    return match;
  }

  // Returns the tokens that the table then holds.
  std::int32_t adopt(SequenceId owner, const SlowMatch& match) {
    SlowTable& table = tables.at(owner);
    for (const BlockId block : match.blocks) {
      num_gains += device.holders.contains(block) ? 0 : 1;
      device.take_cached(block, owner);
      device.use(block);
      table.blocks.emplace(table.size(), block);
    }
    const std::int32_t num_tokens = table.size() * block_size;
    if (!match.partial_block) {
      return num_tokens;
    }
    const BlockId source = *match.partial_block;
    constexpr SequenceId kNobody = 0;  // holds the source meanwhile
    device.take_cached(source, kNobody);
    device.use(source);
    const bool has_room = device.num_free() > 0;
    if (has_room) {
      const BlockId copy = device.take(owner);
      copies.push_back({CopyKind::kCopyOnWrite, source, copy, 1});
      table.blocks.emplace(table.size(), copy);
    }
    device.give(source, kNobody);
    device.last_owner[source] = owner;
    return num_tokens + (has_room ? match.num_partial_tokens : 0);
  }

  void publish(SequenceId owner, const SlowText& text, std::int32_t num_computed) {
    SlowTable& table = tables.at(owner);
    for (std::int32_t index = 0; (index + 1) * block_size <= num_computed; ++index) {
      const BlockId own = table.blocks.at(index);
      const SlowText up_to_here = text.first(static_cast<std::size_t>(index + 1) * device.tokens_per_block);
      const std::optional<BlockId> known = device.find(up_to_here);
      if (!known) {
        device.cache(own, up_to_here);
        ++num_gains;
      } else if (*known != own) {
        num_gains += device.holders.contains(*known) ? 0 : 1;
        device.take_cached(*known, owner);
        device.use(*known);
        table.blocks[index] = *known;
        device.give(own, owner);
        ++num_duplicates;
      }
    }
  }

  std::uint64_t num_gains = 0;
  int num_duplicates = 0;
};

}  // namespace fastpaged::test
