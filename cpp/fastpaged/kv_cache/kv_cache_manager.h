// KVCacheManager: turns "this sequence will hold n tokens" into blocks, in two tiers: the device, where attention
// reads, and the host, where swapped sequences wait. What must be copied for that it writes down, in order.
//
// With prefix caching, a device block that is full and computed is cached: published by a sequence that holds it, found
// and taken by others as long as nobody needs the room. Two blocks that hold the same after the same become one when
// the second is published, so that who holds a cached block holds those before it, too. Nobody writes into a cached
// block: see reserve().
//
// With a host tier, what the device evicts goes to a host block that holds nothing, or to that of the host's cached
// ones unused for longest, and is found there: on the way from the beginning of a text, device blocks come before host
// blocks. Whoever takes it has it copied back, and the host block is free again. Swapped tables come first: they take
// host blocks from what is cached there. A cached block that is swapped out stays cached on the device as well, and is
// known to have a copy on the host as long as somebody holds that: it is not copied out again when others are swapped
// out, nor when the device evicts it (the copy is cached then), and not copied in as long as it is on the device.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fastpaged/base/block_copy.h"
#include "fastpaged/base/types.h"
#include "fastpaged/kv_cache/block_pool.h"
#include "fastpaged/kv_cache/block_table.h"
#include "fastpaged/kv_cache/cache_events.h"
#include "fastpaged/kv_cache/copy_list.h"
#include "fastpaged/kv_cache/host_copies.h"
#include "fastpaged/kv_cache/prefix_cache.h"
#include "fastpaged/kv_cache/prefix_match.h"

namespace fastpaged {

class KVCacheManager {
 public:
  static constexpr std::int32_t kMaxBlockSize = 256;

  // Throws std::invalid_argument unless num_blocks > 0, 1 <= block_size <= 256, num_host_blocks >= 0, and every device
  // slot has an int32 index.
  KVCacheManager(std::int32_t num_blocks, std::int32_t block_size, std::int32_t num_host_blocks = 0,
                 PrefixCaching prefix_caching = {});

  [[nodiscard]] std::int32_t block_size() const { return block_size_; }
  [[nodiscard]] std::int32_t num_blocks() const { return device_.num_blocks(); }
  [[nodiscard]] std::int32_t num_usable_blocks() const { return num_blocks() - device_.num_quarantined(); }
  [[nodiscard]] std::int32_t num_free_blocks() const { return device_.num_free(); }  // cached ones too
  [[nodiscard]] std::int64_t capacity() const;  // tokens that all usable blocks of the device can hold
  // Blocks that num_tokens fill, the last one perhaps in part. Throws std::invalid_argument for num_tokens < 0.
  [[nodiscard]] std::int32_t blocks_for(std::int64_t num_tokens) const;

  // An empty table on the device. REQUIRES: the manager outlives the table.
  [[nodiscard]] BlockTable make_table(SequenceId owner) { return {device_, owner}; }

  // Free blocks that reserve() would take.
  [[nodiscard]] std::int32_t missing_blocks(const BlockTable& table, std::int64_t first_token,
                                            std::int64_t num_tokens) const;
  // Room to write tokens [first_token, first_token + num_tokens): grows the table, and copies each block on the way
  // that somebody else holds too (copy-on-write). One that is cached but held by nobody else is no longer cached. All
  // or nothing; false leaves everything as it was. Throws InvariantError for a table that is on the host.
  [[nodiscard]] bool reserve(BlockTable& table, std::int64_t first_token, std::int64_t num_tokens);
  // Throws InvariantError naming block and owner if writing these tokens would reach a block that is not in the table,
  // not the table's own, free, cached, or not on the device.
  void check_writable(const BlockTable& table, std::int64_t first_token, std::int64_t num_tokens) const;

  // All these tables to the other tier, together: a block that several of them share is copied once and shared there
  // too. False, and nothing changed, if the other tier has too few free blocks. Throws InvariantError unless all are
  // on the device for swap_out, on the host for swap_in.
  [[nodiscard]] bool swap_out(std::span<BlockTable* const> tables);
  [[nodiscard]] bool swap_in(std::span<BlockTable* const> tables);
  // Host blocks that swap_out() would take, and copies that it would make. REQUIRES: the tables are on the device.
  [[nodiscard]] std::int32_t missing_to_swap_out(std::span<BlockTable* const> tables) const {
    return missing_to_move(tables, CopyKind::kSwapOut);
  }
  // Free device blocks that swap_in() would take. REQUIRES: the tables are on the host.
  [[nodiscard]] std::int32_t missing_to_swap_in(std::span<BlockTable* const> tables) const {
    return missing_to_move(tables, CopyKind::kSwapIn);
  }
  // Cached device blocks that it would take instead of copying them in, each once.
  [[nodiscard]] std::vector<BlockId> device_copies(std::span<BlockTable* const> tables) const;
  // Blocks that these tables of one tier hold, shared ones counted once.
  [[nodiscard]] static std::int32_t num_distinct_blocks(std::span<const BlockTable* const> tables);

  // The longest beginning of `tokens`, at most max_tokens of it, that is cached under this root (a tenant's salt):
  // whole blocks, then the beginning of another one, of either tier. Nothing without prefix caching.
  [[nodiscard]] PrefixMatch match_prefix(std::span<const TokenId> tokens, std::int32_t max_tokens,
                                         std::string_view root) const;
  // The empty table shares the matched blocks: those of the host are copied in, as far as blocks are free, and are
  // cached on the device from then on. Then it has a copy of the one of which the beginning counts, if a block is free
  // for that; one of the host stays there. Returns the tokens it now holds, of which `published` then knows. Throws
  // InvariantError if something was forgotten or moved since the match.
  std::int32_t adopt(BlockTable& table, const PrefixMatch& match, PublishedPrefix& published);
  // Caches the blocks that the first num_computed tokens fill, as far as that is not done; where one is cached already,
  // the table takes it and gives its own back. Cheap if there is nothing new. Nothing without prefix caching, and
  // nothing of what was computed before a reset. REQUIRES: the table, on the device, holds `tokens`' K and V.
  void publish(BlockTable& table, std::span<const TokenId> tokens, std::int32_t num_computed, std::string_view root,
               PublishedPrefix& published);
  // What nobody but this table holds is no longer cached, nor is what was computed after it.
  void forget_own(const BlockTable& table);
  // What lies where these copies, which may not have been run, have written is no longer cached, nor is what was
  // computed after it.
  void forget_written(std::span<const BlockCopy> copies);
  // Nothing is cached any more, nor will be what is computed already. Who holds a block goes on holding it.
  void reset_prefix_cache();

  // Its ids are those of device blocks, and from num_blocks() on those of host blocks: see host_node().
  [[nodiscard]] const PrefixCache& prefix_cache() const { return prefix_cache_; }
  [[nodiscard]] PrefixCache::Node host_node(BlockId host) const { return device_.num_blocks() + host; }
  [[nodiscard]] std::int32_t num_cached_host_blocks() const;  // counts them
  [[nodiscard]] bool has_host_tier() const { return host_tier_; }
  // Whether what the device evicts is copied to the host tier, which is not worth it if computing it again is cheaper.
  // True at first; what has a copy there stays cached in any case.
  void copy_evicted(bool copies) { copies_evicted_ = copies; }
  // Since the beginning. Gains: how often a block became cached, or a free cached one somebody's. A match made anew
  // needs at most that many blocks less than one made before.
  [[nodiscard]] std::uint64_t num_prefix_gains() const { return num_gains_; }
  [[nodiscard]] std::uint64_t num_evicted_blocks() const { return num_evicted_; }  // cached ones that were handed out
  [[nodiscard]] std::uint64_t num_partial_copies() const { return num_partial_copies_; }
  [[nodiscard]] std::uint64_t num_demoted_blocks() const { return num_demoted_; }  // copied out when evicted
  [[nodiscard]] std::uint64_t num_promoted_blocks() const {
    return num_promoted_;
  }  // copied in when found, beginnings too
  [[nodiscard]] std::uint64_t num_host_evicted_blocks() const { return num_host_evicted_; }  // the host's handed out

  // What has been decided since the last take_copies(), to be run in this order before the next forward pass.
  [[nodiscard]] const CopyList& copies() const { return copies_; }
  [[nodiscard]] std::vector<BlockCopy> take_copies() { return copies_.take(); }

  // For those who look from outside: what became of the cached contents, and when a block was last used
  // (BlockPool::start_step).
  [[nodiscard]] CacheEvents::Taken take_cache_events() { return cache_events_.take(); }
  void start_step(std::uint64_t step);
  // kv_cache_manager_quarantine.cc. What is wrong with the blocks of each tier, and with what is cached, if so many
  // tables hold each block (see BlockPool::faults).
  struct Faults {
    std::vector<BlockFault> on_device;
    std::vector<BlockFault> on_host;
    std::string of_cache;  // what is wrong with it as a whole, if anything
    [[nodiscard]] bool any() const { return !on_device.empty() || !on_host.empty() || !of_cache.empty(); }
  };
  [[nodiscard]] Faults faults(std::span<const std::int32_t> device_holders,
                              std::span<const std::int32_t> host_holders) const;
  // These blocks are out of circulation for good, and what they held is not cached any more, nor what was computed
  // after it. Tables that list them may be given back. If something is wrong with the cache as a whole, it is reset.
  void quarantine(const Faults& faults);
  // How often a table that went found one of its blocks free.
  [[nodiscard]] std::int64_t num_refused_releases() const {
    return device_.num_refused_releases() + host_.num_refused_releases();
  }

  [[nodiscard]] const BlockPool& device_pool() const { return device_; }
  [[nodiscard]] const BlockPool& host_pool() const { return host_; }
  void check_invariants() const;

 private:
  // Indices of the table's entries that tokens [first_token, first_token + num_tokens) would be written into.
  struct Range {
    std::int32_t begin, end;
  };
  static void check_tier(const BlockTable& table, const BlockPool& tier);
  [[nodiscard]] Range written_blocks(std::int64_t first_token, std::int64_t num_tokens) const;
  // kv_cache_manager_tiers.cc
  [[nodiscard]] bool move(std::span<BlockTable* const> tables, CopyKind kind);
  [[nodiscard]] std::int32_t missing_to_move(std::span<BlockTable* const> tables, CopyKind kind) const;
  [[nodiscard]] std::vector<BlockId> hold_copies(std::span<BlockTable* const> tables, CopyKind kind);
  [[nodiscard]] BlockId take_place(BlockId block, CopyKind kind, SequenceId owner);
  [[nodiscard]] std::optional<BlockId> copy_of(BlockId block, CopyKind kind) const;
  [[nodiscard]] std::optional<BlockId> host_copy_of(BlockId device) const;
  [[nodiscard]] std::optional<BlockId> device_copy_of(BlockId host) const;
  [[nodiscard]] BlockId take_host_block(SequenceId owner);
  [[nodiscard]] bool is_on_device(PrefixCache::Node node) const { return node < device_.num_blocks(); }  // roots too
  void evict(BlockId block, SequenceId new_owner);
  [[nodiscard]] bool demote(BlockId block, SequenceId new_owner);
  void move_entry_in(BlockId host, BlockId device, SequenceId owner);
  void check_tiers() const;

  void uncache(PrefixCache::Node node);
  void forget(PrefixCache::Node node);
  void forget_in_order(std::span<const PrefixCache::Node> nodes);
  // These, which the prefix cache has forgotten. Free blocks stay in the order in which they would be handed out, and
  // come before all others.
  void uncache_in_order(std::span<const PrefixCache::Node> gone);
  void adopt_host_blocks(const PrefixMatch& match, SequenceId owner, std::vector<BlockId>& blocks);
  [[nodiscard]] bool has_room_for_partial(const PrefixMatch& match) const;
  [[nodiscard]] BlockId copy_partial(const PrefixMatch& match, SequenceId owner);
  void publish_block(BlockTable& table, std::int32_t index, PrefixCache::Node parent, std::span<const TokenId> tokens);
  [[nodiscard]] bool is_published(const BlockTable& table, const PublishedPrefix& published) const;

  std::int32_t block_size_;
  bool prefix_caching_;
  bool host_tier_;
  bool copies_evicted_ = true;
  BlockPool device_;
  BlockPool host_;
  CopyList copies_;
  CacheEvents cache_events_;
  PrefixCache prefix_cache_;
  HostCopies host_copies_;
  std::uint64_t epoch_ = 1;  // counts resets
  std::uint64_t num_gains_ = 0;
  std::uint64_t num_evicted_ = 0;
  std::uint64_t num_partial_copies_ = 0;
  std::uint64_t num_demoted_ = 0;
  std::uint64_t num_promoted_ = 0;
  std::uint64_t num_host_evicted_ = 0;
};

}  // namespace fastpaged
