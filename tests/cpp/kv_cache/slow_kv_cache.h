// SlowKVCache: KVCacheManager said plainly, with maps, sets and lists. Tables go by the id of their owner, and who
// holds a block is a set of owners.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "fastpaged/base/block_copy.h"
#include "fastpaged/base/types.h"
#include "kv_cache/slow_pool.h"

namespace fastpaged::test {

struct SlowTable {
  bool on_host = false;
  std::map<std::int32_t, BlockId> blocks;  // by index
  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(blocks.size()); }
};

class SlowKVCache {
 public:
  SlowKVCache(std::int32_t num_blocks, std::int32_t tokens_per_block, std::int32_t num_host_blocks)
      : device("device", num_blocks, tokens_per_block),
        host("host", num_host_blocks, tokens_per_block),
        block_size(tokens_per_block) {}

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
      table.blocks[index] = device.take(owner);
    }
    for (const std::int32_t index : written(first_token, num_tokens)) {
      const BlockId old = table.blocks.at(index);
      if (index < old_size && device.shared(old)) {
        table.blocks[index] = device.take(owner);
        copies.push_back({CopyKind::kCopyOnWrite, old, table.blocks[index], 1});
        device.give(old, owner);
      } else if (device.cached.contains(old)) {
        device.forget(old);
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
    if (std::ssize(distinct) > to.num_free()) {
      return false;
    }
    std::map<BlockId, BlockId> moved;
    std::map<SequenceId, SlowTable> there;
    for (const SequenceId owner : owners) {
      there[owner].on_host = to_host;
      for (const auto& [index, block] : tables.at(owner).blocks) {
        if (moved.contains(block)) {
          to.share(moved[block], owner);
        } else {
          moved[block] = to.take(owner);
          copies.push_back({to_host ? CopyKind::kSwapOut : CopyKind::kSwapIn, block, moved[block], 1});
        }
        there[owner].blocks[index] = moved[block];
      }
    }
    for (auto owner = owners.rbegin(); owner != owners.rend(); ++owner) {
      truncate(*owner, 0);
      tables[*owner] = there[*owner];
    }
    return true;
  }

  SlowPool device;
  SlowPool host;
  std::int32_t block_size;
  std::map<SequenceId, SlowTable> tables;
  std::vector<BlockCopy> copies;  // one block each, in order

 private:
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
