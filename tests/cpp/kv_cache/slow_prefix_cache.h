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
  std::vector<BlockId> host_blocks;
  std::int32_t num_in_use = 0;
  std::optional<SlowPlace> partial_block;
  std::int32_t num_partial_tokens = 0;
};

class SlowPrefixCache : public SlowKVCache {
 public:
  using SlowKVCache::SlowKVCache;

  [[nodiscard]] SlowMatch match(const SlowText& text, std::int32_t max_tokens) const {
    SlowMatch match;
    const auto tokens_per_block = static_cast<std::size_t>(block_size);
    const std::size_t wanted = std::min(text.size(), static_cast<std::size_t>(max_tokens));
    std::size_t done = 0;
    for (; done + tokens_per_block <= wanted; done += tokens_per_block) {
      const std::optional<SlowPlace> place = find(text.first(done + tokens_per_block));
      if (!place) {
        break;
      }
      (place->on_host ? match.host_blocks : match.blocks).push_back(place->block);
      match.num_in_use += !place->on_host && device.holders.contains(place->block) ? 1 : 0;
    }
    // The next block itself, if it is there and only not wanted whole; else the child that agrees the longest.
    const std::size_t end = std::min(wanted, done + tokens_per_block);
    std::vector<SlowPlace> candidates = children(text.first(done));
    candidates.resize(std::min(candidates.size(), std::size_t{PrefixCache::kMaxChildrenTried}));
    const std::optional<SlowPlace> next =
        text.size() < done + tokens_per_block ? std::nullopt : find(text.first(done + tokens_per_block));
    if (next) {
      candidates = {*next};
    }
    for (const SlowPlace& child : candidates) {
      std::int32_t num_equal = 0;
      for (std::size_t i = done; i < end && entries.at(child).text.tokens[i] == text.tokens[i]; ++i) {
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
      use({false, block});
      table.blocks.emplace(table.size(), block);
    }
    std::int64_t num_free = device.num_free() - std::ssize(match.host_blocks);
    num_free -= match.partial_block && std::ranges::count(device.free, match.partial_block->block) > 0 &&
                        !match.partial_block->on_host
                    ? 1
                    : 0;
    const bool copies_partial = match.partial_block && num_free > 0;
    if (copies_partial) {
      pool_of(*match.partial_block).take_cached(match.partial_block->block, kNobody);
    }
    copy_in(owner, match);
    const std::int32_t num_tokens = table.size() * block_size;
    if (!copies_partial) {
      return num_tokens;
    }
    const SlowPlace source = *match.partial_block;
    const BlockId copy = take(false, owner);
    copies.push_back({source.on_host ? CopyKind::kSwapIn : CopyKind::kCopyOnWrite, source.block, copy, 1});
    use(source);
    num_promoted += source.on_host ? 1 : 0;
    table.blocks.emplace(table.size(), copy);
    pool_of(source).give(source.block, kNobody);
    return num_tokens + match.num_partial_tokens;
  }

  void publish(SequenceId owner, const SlowText& text, std::int32_t num_computed) {
    SlowTable& table = tables.at(owner);
    for (std::int32_t index = 0; (index + 1) * block_size <= num_computed; ++index) {
      const BlockId own = table.blocks.at(index);
      const SlowText up_to_here =
          text.first(static_cast<std::size_t>(index + 1) * static_cast<std::size_t>(block_size));
      const std::optional<SlowPlace> known = find(up_to_here);
      if (!known) {
        cache(own, up_to_here);
        ++num_gains;
      } else if (known->on_host) {
        use(*known);
        const bool is_free = !host.holders.contains(known->block);
        move_entry_in(known->block, own);
        if (is_free) {
          host.put_first(known->block);
        }
        ++num_taken_over;
      } else if (known->block != own) {
        num_gains += device.holders.contains(known->block) ? 0 : 1;
        device.take_cached(known->block, owner);
        use(*known);
        table.blocks[index] = known->block;
        device.give(own, owner);
        ++num_duplicates;
      }
    }
  }

  // What nobody but this table holds, and what goes on from it.
  void forget_own(SequenceId owner) {
    for (const auto& [index, block] : tables.at(owner).blocks) {
      if (device.cached.contains(block) && !device.shared(block)) {
        return forget_in_order({{false, block}});
      }
    }
  }

  // These copies may not have been run.
  void forget_written(const std::vector<BlockCopy>& lost) {
    std::set<SlowPlace> places;
    for (const BlockCopy& copy : lost) {
      const SlowPlace place = {copy.kind == CopyKind::kSwapOut, copy.destination};
      if (entries.contains(place)) {
        places.insert(place);
      }
    }
    forget_in_order(places);
  }

  void reset() {
    std::set<SlowPlace> all;
    for (const auto& [place, entry] : entries) {
      all.insert(place);
    }
    forget_in_order(all);
  }

  int num_duplicates = 0;
  int num_taken_over = 0;

 private:
  // As far as there is room.
  void copy_in(SequenceId owner, const SlowMatch& match) {
    SlowTable& table = tables.at(owner);
    for (const BlockId block : match.host_blocks) {
      host.take_cached(block, kNobody);
    }
    for (const BlockId block : match.host_blocks) {
      if (device.num_free() > 0) {
        const BlockId place = take(false, owner);
        copies.push_back({CopyKind::kSwapIn, block, place, 1});
        ++num_promoted;
        move_entry_in(block, place);
        use({false, place});
        table.blocks.emplace(table.size(), place);
      }
      host.give(block, kNobody);
    }
  }
};

}  // namespace fastpaged::test
