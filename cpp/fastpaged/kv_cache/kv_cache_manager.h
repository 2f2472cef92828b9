// KVCacheManager: turns "this sequence will hold n tokens" into blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "fastpaged/base/types.h"
#include "fastpaged/kv_cache/block_pool.h"
#include "fastpaged/kv_cache/block_table.h"

namespace fastpaged {

class KVCacheManager {
 public:
  static constexpr std::int32_t kMaxBlockSize = 256;

  // Throws std::invalid_argument unless num_blocks > 0, 1 <= block_size <= 256, and every slot has an int32 index.
  KVCacheManager(std::int32_t num_blocks, std::int32_t block_size);

  [[nodiscard]] std::int32_t block_size() const { return block_size_; }
  [[nodiscard]] std::int32_t num_blocks() const { return pool_.num_blocks(); }
  [[nodiscard]] std::int32_t num_free_blocks() const { return pool_.num_free(); }
  [[nodiscard]] std::int64_t capacity() const;  // tokens the whole pool can hold
  // Blocks that num_tokens fill, the last one perhaps in part. Throws std::invalid_argument for num_tokens < 0.
  [[nodiscard]] std::int32_t blocks_for(std::int64_t num_tokens) const;

  [[nodiscard]] BlockTable make_table() { return BlockTable(pool_); }  // REQUIRES: the manager outlives the table
  // Room for num_tokens in all: all-or-nothing; false leaves the table as it was.
  [[nodiscard]] bool reserve(BlockTable& table, std::int64_t num_tokens);

  [[nodiscard]] const BlockPool& pool() const { return pool_; }
  [[nodiscard]] std::vector<BlockId> free_blocks() const { return pool_.free_blocks(); }
  void check_invariants() const;

 private:
  std::int32_t block_size_;
  BlockPool pool_;
};

}  // namespace fastpaged
