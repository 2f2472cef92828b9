// SlowKVCache: KVCacheManager said plainly, with maps, sets and lists. Tables go by the id of their owner, and who
// holds a block is a set of owners.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "fastpaged/base/block_copy.h"
#include "fastpaged/base/types.h"
#include "kv_cache/slow_pool.h"
#include "kv_cache/slow_text.h"

namespace fastpaged::test {

struct SlowTable {
  bool on_host = false;
  std::map<std::int32_t, BlockId> blocks;  // by index
  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(blocks.size()); }
};

class SlowKVCache {
 public:
  SlowKVCache(std::int32_t num_blocks, std::int32_t tokens_per_block, std::int32_t num_host_blocks)
      : device("device", num_blocks), host("host", num_host_blocks), block_size(tokens_per_block) {}

  [[nodiscard]] SlowPool& pool_of(const SlowTable& table) { return table.on_host ? host : device; }

  [[nodiscard]] std::set<std::int32_t> written(std::int64_t first_token, std::int64_t num_tokens) const {
    std::set<std::int32_t> indices;
    for (std::int64_t token = first_token; token < first_token + num_tokens; ++token) {
      indices.insert(static_cast<std::int32_t>(token / block_size));
    }
    return indices;
  }

  [[nodiscard]] std::int32_t missing(SequenceId owner, std::int64_t first_token, std::int64_t num_tokens) {
    const SlowTable& table = tables.at(owner);
    std::int32_t count = 0;
    for (std::int32_t index = 0; index <= last_of(written(first_token, num_tokens)); ++index) {
      count += index >= table.size() ? 1 : 0;
    }
    for (const std::int32_t index : written(first_token, num_tokens)) {
      count += index < table.size() && pool_of(table).shared(table.blocks.at(index)) ? 1 : 0;
    }
    return count;
  }

  bool reserve(SequenceId owner, std::int64_t first_token, std::int64_t num_tokens) {
    if (missing(owner, first_token, num_tokens) > device.num_free()) {
      return false;
    }
    SlowTable& table = tables.at(owner);
    const std::int32_t old_size = table.size();
    while (table.size() <= last_of(written(first_token, num_tokens))) {
      const std::int32_t index = table.size();
      table.blocks[index] = take(false, owner);
    }
    for (const std::int32_t index : written(first_token, num_tokens)) {
      const BlockId old = table.blocks.at(index);
      if (index < old_size && device.shared(old)) {
        table.blocks[index] = take(false, owner);
        copies.push_back({CopyKind::kCopyOnWrite, old, table.blocks[index], 1});
        device.give(old, owner);
      } else if (device.cached.contains(old)) {
        forget({false, old});
      }
    }
    return true;
  }

  void fork(SequenceId parent, SequenceId child, std::int32_t num_blocks) {
    const SlowTable from = tables.at(parent);
    SlowTable& table = tables[child];
    table.on_host = from.on_host;
    for (std::int32_t index = 0; index < num_blocks; ++index) {
      table.blocks[index] = from.blocks.at(index);
      pool_of(table).share(table.blocks[index], child);
    }
  }

  void truncate(SequenceId owner, std::int32_t num_blocks) {
    SlowTable& table = tables.at(owner);
    for (std::int32_t index = table.size() - 1; index >= num_blocks; --index) {
      pool_of(table).give(table.blocks.at(index), owner);
      table.blocks.erase(index);
    }
  }

  // All of them to the host, or all of them back.
  bool swap(const std::vector<SequenceId>& owners, bool to_host) {
    SlowPool& to = to_host ? host : device;
    std::set<BlockId> distinct;
    for (const SequenceId owner : owners) {
      for (const auto& [index, block] : tables.at(owner).blocks) {
        distinct.insert(block);
      }
    }
    if (missing_to_swap(distinct, to_host) > to.num_free()) {
      return false;
    }
    const std::set<BlockId> kept = to_host ? std::set<BlockId>() : keep_copies(distinct);
    std::map<BlockId, BlockId> moved;
    std::map<SequenceId, SlowTable> there;
    for (const SequenceId owner : owners) {
      there[owner].on_host = to_host;
      for (const auto& [index, block] : tables.at(owner).blocks) {
        if (!moved.contains(block)) {
          moved[block] = place_for(block, to_host, owner);
        }
        to.share(moved[block], owner);
        there[owner].blocks[index] = moved[block];
      }
    }
    for (auto owner = owners.rbegin(); owner != owners.rend(); ++owner) {
      truncate(*owner, 0);
      tables[*owner] = there[*owner];
    }
    for (const BlockId block : kept) {
      device.give(block, kNobody);
    }
    return true;
  }

  // Of these blocks those that need a free block of the other tier: not what somebody has there already.
  [[nodiscard]] std::int64_t missing_to_swap(const std::set<BlockId>& blocks, bool to_host) const {
    return std::ranges::count_if(blocks, [&](BlockId block) {
      const std::optional<BlockId> copy = copy_of(block, to_host);
      return !copy || !(to_host ? host : device).holders.contains(*copy);
    });
  }

  SlowPool device;
  SlowPool host;
  std::int32_t block_size;
  std::map<SequenceId, SlowTable> tables;
  std::vector<BlockCopy> copies;  // one block each, in order

  // What is cached.
  std::map<SlowPlace, SlowEntry> entries;
  std::map<BlockId, std::int64_t> births;  // of what host blocks were given to hold, as far as that was cached
  bool host_tier = false;
  bool copies_evicted = true;
  std::int64_t now = 0;
  std::uint64_t num_gains = 0;
  std::uint64_t num_evicted = 0;
  std::uint64_t num_host_evicted = 0;
  std::uint64_t num_demoted = 0;
  std::uint64_t num_promoted = 0;
  std::uint64_t num_taken_as_copies = 0;  // cached on the host without being copied

  [[nodiscard]] SlowPool& pool_of(const SlowPlace& place) { return place.on_host ? host : device; }

  // The cached block whose text, from the beginning on, is this one.
  [[nodiscard]] std::optional<SlowPlace> find(const SlowText& text) const {
    for (const auto& [place, entry] : entries) {
      if (entry.text == text) {
        return place;
      }
    }
    return std::nullopt;
  }
  void cache(BlockId block, const SlowText& text) {
    ++now;
    entries[{false, block}] = {text, now, now};
    device.cached.insert(block);
  }
  void use(const SlowPlace& place) { entries.at(place).last_used = ++now; }
  // The cached blocks that go on from this text by as many tokens as a block has, the most recently used first.
  [[nodiscard]] std::vector<SlowPlace> children(const SlowText& text) const {
    std::vector<SlowPlace> places;
    for (const auto& [place, entry] : entries) {
      if (entry.text.begins_with(text) && entry.text.size() == text.size() + static_cast<std::size_t>(block_size)) {
        places.push_back(place);
      }
    }
    std::ranges::sort(places, std::greater(), [&](const SlowPlace& place) { return entries.at(place).last_used; });
    return places;
  }
  // It, and what goes on from it, the nearest first.
  [[nodiscard]] std::vector<SlowPlace> from(const SlowPlace& place) const {
    std::vector<SlowPlace> places = {place};
    for (std::size_t i = 0; i < places.size(); ++i) {
      for (const SlowPlace& child : children(entries.at(places[i]).text)) {
        places.push_back(child);
      }
    }
    return places;
  }
  // What goes on from it cannot be found without it.
  void forget(const SlowPlace& place) {
    for (const SlowPlace& gone : from(place)) {
      entries.erase(gone);
      pool_of(gone).cached.erase(gone.block);
      pool_of(gone).put_first(gone.block);
    }
  }
  // The same of several; what is free of it stays in its order.
  void forget_in_order(const std::set<SlowPlace>& places) {
    std::set<BlockId> gone_of[2];
    for (const SlowPlace& place : places) {
      for (const SlowPlace& gone : from(place)) {
        gone_of[gone.on_host ? 1 : 0].insert(gone.block);
      }
    }
    std::erase_if(entries,
                  [&](const auto& entry) { return gone_of[entry.first.on_host ? 1 : 0].contains(entry.first.block); });
    device.uncache(gone_of[0]);
    host.uncache(gone_of[1]);
  }
  void move_entry(const SlowPlace& from, const SlowPlace& to) {
    entries[to] = entries.at(from);
    entries.erase(from);
    pool_of(from).cached.erase(from.block);
    pool_of(to).cached.insert(to.block);
  }
  // From the host, where the block goes on holding the same for whoever else has it.
  void move_entry_in(BlockId from, BlockId to) {
    move_entry({true, from}, {false, to});
    births[from] = entries.at({false, to}).birth;
    ++num_gains;
  }

  // A free block, and what was cached in it goes to the host or is forgotten.
  BlockId take(bool on_host, SequenceId owner) {
    const BlockId block = (on_host ? host : device).take(owner);
    if (on_host) {
      births.erase(block);
    }
    if (entries.contains({on_host, block})) {
      ++(on_host ? num_host_evicted : num_evicted);
      if (on_host || !demote(block, owner)) {
        forget_in_order({{on_host, block}});
      }
    }
    return block;
  }

  static constexpr SequenceId kNobody = 0;  // holds blocks meanwhile

 private:
  bool demote(BlockId block, SequenceId owner) {
    const std::vector<SlowPlace> after = children(entries.at({false, block}).text);
    if (!host_tier || !std::ranges::all_of(after, &SlowPlace::on_host)) {
      return false;
    }
    if (const std::optional<BlockId> copy = copy_of(block, true)) {
      move_entry({false, block}, {true, *copy});
      ++num_taken_as_copies;
      return true;
    }
    if (!copies_evicted || host.num_free() == 0) {
      return false;
    }
    const BlockId place = take(true, owner);
    copies.push_back({CopyKind::kSwapOut, block, place, 1});
    ++num_demoted;
    move_entry({false, block}, {true, place});
    host.give(place, owner);
    return true;
  }

  // A block that holds the same in the other tier: a cached one of the device, or one of the host that somebody has.
  [[nodiscard]] std::optional<BlockId> copy_of(BlockId block, bool on_host) const {
    if (host_tier && on_host && entries.contains({false, block})) {
      for (const auto& [place, birth] : births) {
        if (birth == entries.at({false, block}).birth && host.holders.contains(place)) {
          return place;
        }
      }
    }
    for (const auto& [place, entry] : entries) {
      if (!on_host && !place.on_host && births.contains(block) && births.at(block) == entry.birth) {
        return place.block;
      }
    }
    return std::nullopt;
  }

  // What is on the device of these host blocks stays there.
  std::set<BlockId> keep_copies(const std::set<BlockId>& blocks) {
    std::set<BlockId> kept;
    for (const BlockId block : blocks) {
      if (const std::optional<BlockId> copy = copy_of(block, false)) {
        num_gains += device.holders.contains(*copy) ? 0 : 1;
        device.take_cached(*copy, kNobody);
        kept.insert(*copy);
      }
    }
    return kept;
  }

  BlockId place_for(BlockId block, bool to_host, SequenceId owner) {
    if (const std::optional<BlockId> copy = copy_of(block, to_host)) {
      return *copy;
    }
    const BlockId place = take(to_host, owner);
    copies.push_back({to_host ? CopyKind::kSwapOut : CopyKind::kSwapIn, block, place, 1});
    if (to_host && host_tier && entries.contains({false, block})) {
      births[place] = entries.at({false, block}).birth;
    }
    if (!to_host && entries.contains({true, block}) && comes_after_device_blocks(entries.at({true, block}).text)) {
      move_entry_in(block, place);
    }
    return place;
  }

  [[nodiscard]] bool comes_after_device_blocks(const SlowText& text) const {
    const SlowText before = text.first(text.size() - static_cast<std::size_t>(block_size));
    const std::optional<SlowPlace> parent = find(before);
    return before.size() == 0 || (parent && !parent->on_host);
  }

  [[nodiscard]] static std::int32_t last_of(const std::set<std::int32_t>& indices) {
    return indices.empty() ? -1 : *indices.rbegin();
  }
};

// One block each, in the same order.
inline std::vector<BlockCopy> one_by_one(std::span<const BlockCopy> copies) {
  std::vector<BlockCopy> single;
  for (const BlockCopy& copy : copies) {
    for (std::int32_t i = 0; i < copy.num_blocks; ++i) {
      single.push_back({copy.kind, copy.source + i, copy.destination + i, 1});
    }
  }
  return single;
}

}  // namespace fastpaged::test
