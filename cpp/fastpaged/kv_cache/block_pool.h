// BlockPool: the blocks of one memory tier as ids and reference counts; it never sees a byte.
//
// A free block holds nothing, or it is cached: what it holds can be found (by a PrefixCache) and the block be taken
// again. Blocks that hold nothing are handed out first, the one given back last before the others (LIFO), so that a
// small working set stays small. A new pool hands out 0, 1, 2, ... Cached blocks come after them, the one that nobody
// has held for longest first (LRU): it is evicted, and whoever caches it is told.
//
// Whoever takes or gives back a block says who it is (an owner: the id of a sequence), so that an error names both
// sides. The pool counts references; who holds them is the business of the block tables.
//
// A block that something is wrong with is quarantined: out of circulation for good, with count 0 and not free.
//
// Invariants (check_invariants):
//   1. every id in [0, num_blocks) is on the free list with count 0, or off it with count > 0, or quarantined;
//   2. the free list holds no id twice, and no block that holds nothing after a cached one;
//   3. num_references() is the sum of all counts.
// Not thread-safe: the scheduler's thread owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fastpaged/base/types.h"
#include "fastpaged/kv_cache/free_list.h"

namespace fastpaged {

// Owners from here on are pinned prefixes, those below sequences.
inline constexpr SequenceId kFirstPinOwner = SequenceId{1} << 63;
[[nodiscard]] std::string owner_name(SequenceId owner);  // as messages have it: "sequence 3", "pin 3"

// What is wrong with a block, in words.
struct BlockFault {
  BlockId block = 0;
  std::string what;
};

class BlockPool {
 public:
  // name: of the tier, for messages ("device"). Throws std::invalid_argument for num_blocks < 0.
  BlockPool(std::string name, std::int32_t num_blocks);
  BlockPool(const BlockPool&) = delete;  // block tables point to their pool
  BlockPool& operator=(const BlockPool&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::int32_t num_blocks() const { return static_cast<std::int32_t>(ref_counts_.size()); }
  [[nodiscard]] std::int32_t num_free() const { return free_list_.size(); }  // cached ones too
  [[nodiscard]] std::int32_t ref_count(BlockId block) const;  // throws std::invalid_argument for an unknown block
  [[nodiscard]] std::int64_t num_references() const { return num_references_; }  // of all blocks together

  // A free block with count 1, or nullopt when none is left.
  [[nodiscard]] std::optional<BlockId> allocate(SequenceId owner);
  // Count + 1. Throws std::invalid_argument for a free or unknown block.
  void retain(BlockId block, SequenceId owner);
  // Count - 1; at 0 the block goes back to the free list. Nothing for a quarantined block. Throws std::invalid_argument
  // for a free or unknown block, naming who wanted to release it and who had it last.
  void release(BlockId block, SequenceId owner);

  // Whether what it holds can be found. Throws std::invalid_argument for an unknown block.
  [[nodiscard]] bool is_cached(BlockId block) const;
  // From now on it is cached. Throws std::invalid_argument for a free or unknown block.
  void cache(BlockId block, SequenceId owner);
  // From now on it is not; if it is free, it is the next to be handed out. REQUIRES: it is cached.
  void uncache(BlockId block);
  // Count + 1 of a cached block, free or not. Returns whether it was free. REQUIRES: it is cached.
  bool take_cached(BlockId block, SequenceId owner);
  // Whom allocate() tells, once the block is its new owner's, that it is no longer cached, and who that is. May call
  // uncache().
  void on_eviction(std::function<void(BlockId, SequenceId)> evicted) { evicted_ = std::move(evicted); }

  // For those who look from outside: the step in which a block was last taken, shared, given back, or planned to be
  // written into; 0 if never. Steps are whatever start_step() says, from 1 on.
  void start_step(std::uint64_t step) { step_ = step; }
  void note_write(BlockId block) { last_use_[block] = step_; }  // REQUIRES: the block is known
  [[nodiscard]] std::uint64_t last_use(BlockId block) const { return last_use_[block]; }  // the same

  // A table that could not give a block back, and cannot throw, says so; how often that was.
  void note_refused_release() noexcept { ++num_refused_releases_; }
  [[nodiscard]] std::int64_t num_refused_releases() const { return num_refused_releases_; }

  // block_pool_quarantine.cc: of blocks that somebody has given back twice, or lost.
  [[nodiscard]] std::int32_t num_quarantined() const { return num_quarantined_; }
  [[nodiscard]] bool is_quarantined(BlockId block) const { return quarantined_[block]; }  // REQUIRES: it is known
  // Blocks whose count, or whose being free, is not as it must be if so many tables hold each. REQUIRES: one number for
  // each block.
  [[nodiscard]] std::vector<BlockFault> faults(std::span<const std::int32_t> holders) const;
  // Takes these out of circulation, and makes the free list anew of all others whose count is 0, in the order they had.
  // is_cached: from now on those of which it is true are cached, of all blocks.
  void quarantine(std::span<const BlockFault> faults, const std::function<bool(BlockId)>& is_cached);

  // In the order they would be allocated: first all that hold nothing, then all that are cached.
  [[nodiscard]] std::vector<BlockId> free_blocks() const { return free_blocks(false); }
  [[nodiscard]] std::vector<BlockId> cached_free_blocks() const { return free_blocks(true); }
  void check_invariants() const;

 private:
  [[nodiscard]] std::vector<BlockId> free_blocks(bool cached) const;
  void require_known(BlockId block) const;
  void require_held(BlockId block, const char* operation, SequenceId owner) const;

  std::string name_;
  FreeList free_list_;
  std::vector<std::int32_t> ref_counts_;
  std::int64_t num_references_ = 0;
  std::vector<bool> cached_;
  std::vector<bool> quarantined_;
  std::int32_t num_quarantined_ = 0;
  std::int64_t num_refused_releases_ = 0;
  std::vector<std::optional<SequenceId>> last_owner_;  // who took, shared or gave back each block last
  std::vector<std::uint64_t> last_use_;
  std::uint64_t step_ = 0;
  std::function<void(BlockId, SequenceId)> evicted_ = [](BlockId, SequenceId) {};
};

}  // namespace fastpaged
