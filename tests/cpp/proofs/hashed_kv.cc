#include "proofs/hashed_kv.h"

#include <algorithm>
#include <cstddef>

#include "fastpaged/ops/copy_blocks.h"

namespace fastpaged::test {

namespace {

std::uint64_t hash(History history, int layer, int kv) {
  return mixed(history ^ mixed(static_cast<std::uint64_t>(layer) * 2 + static_cast<std::uint64_t>(kv)));
}

BlockMemory memory_of(std::vector<std::uint64_t>& words, const BlockPool& pool) {
  return {reinterpret_cast<std::byte*>(words.data()), pool.num_blocks()};
}

}  // namespace

HashedKV::HashedKV(const KVCacheManager& kv_cache, int num_layers)
    : kv_cache_(&kv_cache),
      num_layers_(num_layers),
      device_(static_cast<std::size_t>(word(kv_cache.num_blocks(), 0, 0, 0))),
      host_(static_cast<std::size_t>(word(kv_cache.host_pool().num_blocks(), 0, 0, 0))) {}

std::int64_t HashedKV::word(BlockId block, int layer, int kv, std::int32_t offset) const {
  return ((std::int64_t{block} * num_layers_ + layer) * 2 + kv) * kv_cache_->block_size() + offset;
}

void HashedKV::copy(std::span<const BlockCopy> copies) {
  const auto block_bytes = static_cast<std::int64_t>(sizeof(std::uint64_t)) * word(1, 0, 0, 0);
  copy_blocks(copies, block_bytes, memory_of(device_, kv_cache_->device_pool()),
              memory_of(host_, kv_cache_->host_pool()));
}

void HashedKV::spoil_free_blocks() {
  const auto spoil = [&](std::vector<std::uint64_t>& words, const BlockPool& pool) {
    for (const BlockId block : pool.free_blocks()) {
      std::fill_n(words.begin() + word(block, 0, 0, 0), word(1, 0, 0, 0), mixed(~++garbage_));
    }
  };
  spoil(device_, kv_cache_->device_pool());
  spoil(host_, kv_cache_->host_pool());
}

void HashedKV::write(std::int64_t device_slot, History history) {
  const auto block = static_cast<BlockId>(device_slot / kv_cache_->block_size());
  const auto offset = static_cast<std::int32_t>(device_slot % kv_cache_->block_size());
  for (int layer = 0; layer < num_layers_; ++layer) {
    for (const int kv : {0, 1}) {
      device_.at(word(block, layer, kv, offset)) = hash(history, layer, kv);
    }
  }
}

bool HashedKV::holds(const BlockPool& pool, BlockId block, std::int32_t offset, History history) const {
  const std::vector<std::uint64_t>& words = &pool == &kv_cache_->host_pool() ? host_ : device_;
  for (int layer = 0; layer < num_layers_; ++layer) {
    for (const int kv : {0, 1}) {
      if (words.at(word(block, layer, kv, offset)) != hash(history, layer, kv)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace fastpaged::test
