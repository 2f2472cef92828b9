// KVCacheManager: turns "this sequence will hold n tokens" into blocks, in two tiers: the device, where attention
// reads, and the host, where swapped sequences wait. What must be copied for that it writes down, in order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fastpaged/base/block_copy.h"
#include "fastpaged/base/types.h"
#include "fastpaged/kv_cache/block_pool.h"
#include "fastpaged/kv_cache/block_table.h"
#include "fastpaged/kv_cache/copy_list.h"

namespace fastpaged {

class KVCacheManager {
 public:
  static constexpr std::int32_t kMaxBlockSize = 256;

  // Throws std::invalid_argument unless num_blocks > 0, 1 <= block_size <= 256, num_host_blocks >= 0, and every device
  // slot has an int32 index.
  KVCacheManager(std::int32_t num_blocks, std::int32_t block_size, std::int32_t num_host_blocks = 0);

  [[nodiscard]] std::int32_t block_size() const { return block_size_; }
  [[nodiscard]] std::int32_t num_blocks() const { return device_.num_blocks(); }
  [[nodiscard]] std::int32_t num_free_blocks() const { return device_.num_free(); }
  [[nodiscard]] std::int64_t capacity() const;  // tokens the whole device pool can hold
  // Blocks that num_tokens fill, the last one perhaps in part. Throws std::invalid_argument for num_tokens < 0.
  [[nodiscard]] std::int32_t blocks_for(std::int64_t num_tokens) const;

  // An empty table on the device. REQUIRES: the manager outlives the table.
  [[nodiscard]] BlockTable make_table(SequenceId owner) { return {device_, owner}; }

  // Free blocks that reserve() would take.
  [[nodiscard]] std::int32_t missing_blocks(const BlockTable& table, std::int64_t first_token,
                                            std::int64_t num_tokens) const;
  // Room to write tokens [first_token, first_token + num_tokens): grows the table, and copies each block on the way
  // that somebody else holds too (copy-on-write). All or nothing; false leaves everything as it was. Throws
  // InvariantError for a table that is on the host.
  [[nodiscard]] bool reserve(BlockTable& table, std::int64_t first_token, std::int64_t num_tokens);
  // Throws InvariantError naming block and owner if writing these tokens would reach a block that is not in the table,
  // not the table's own, or not on the device.
  void check_writable(const BlockTable& table, std::int64_t first_token, std::int64_t num_tokens) const;

  // All these tables to the other tier, together: a block that several of them share is copied once and shared there
  // too. False, and nothing changed, if the other tier has too few free blocks. Throws InvariantError unless all are
  // on the device for swap_out, on the host for swap_in.
  [[nodiscard]] bool swap_out(std::span<BlockTable* const> tables);
  [[nodiscard]] bool swap_in(std::span<BlockTable* const> tables);
  // Blocks that these tables of one tier hold, shared ones counted once.
  [[nodiscard]] static std::int32_t num_distinct_blocks(std::span<const BlockTable* const> tables);

  // What has been decided since the last take_copies(), to be run in this order before the next forward pass.
  [[nodiscard]] const CopyList& copies() const { return copies_; }
  [[nodiscard]] std::vector<BlockCopy> take_copies() { return copies_.take(); }

  [[nodiscard]] const BlockPool& device_pool() const { return device_; }
  [[nodiscard]] const BlockPool& host_pool() const { return host_; }
  void check_invariants() const;

 private:
  // Indices of the table's entries that tokens [first_token, first_token + num_tokens) would be written into.
  struct Range {
    std::int32_t begin, end;
  };
  [[nodiscard]] Range written_blocks(std::int64_t first_token, std::int64_t num_tokens) const;
  [[nodiscard]] bool move(std::span<BlockTable* const> tables, CopyKind kind, const BlockPool& from, BlockPool& to);

  std::int32_t block_size_;
  BlockPool device_;
  BlockPool host_;
  CopyList copies_;
};

}  // namespace fastpaged
