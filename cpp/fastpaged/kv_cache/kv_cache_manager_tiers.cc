// KVCacheManager's two tiers: tables that move from one to the other, and cached blocks that do.
#include <algorithm>
#include <optional>
#include <source_location>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "fastpaged/base/check.h"
#include "fastpaged/kv_cache/kv_cache_manager.h"

namespace fastpaged {

bool KVCacheManager::swap_out(std::span<BlockTable* const> tables) {
  return move(tables, CopyKind::kSwapOut);
}

bool KVCacheManager::swap_in(std::span<BlockTable* const> tables) {
  return move(tables, CopyKind::kSwapIn);
}

bool KVCacheManager::move(std::span<BlockTable* const> tables, CopyKind kind) {
  const bool out = kind == CopyKind::kSwapOut;
  BlockPool& to = out ? host_ : device_;
  for (const BlockTable* table : tables) {
    check_tier(*table, out ? device_ : host_);
  }
  if (missing_to_move(tables, kind) > to.num_free()) {
    return false;
  }
  const std::vector<BlockId> held = hold_copies(tables, kind);
  const bool may_share = tables.size() > 1;
  std::unordered_map<BlockId, BlockId> moved;  // where tables may share blocks
  std::vector<std::vector<BlockId>> new_blocks;
  for (const BlockTable* table : tables) {
    std::vector<BlockId>& blocks = new_blocks.emplace_back();
    blocks.reserve(table->blocks().size());
    for (const BlockId block : table->blocks()) {
      const auto known = may_share ? moved.find(block) : moved.end();
      if (known != moved.end()) {
        to.retain(known->second, table->owner());
        blocks.push_back(known->second);
        continue;
      }
      blocks.push_back(take_place(block, kind, table->owner()));
      if (may_share) {
        moved.emplace(block, blocks.back());
      }
    }
  }
  // Given back in reverse, as they were taken: the next tables find them in order.
  for (std::size_t i = tables.size(); i-- > 0;) {
    tables[i]->move_to(to, std::move(new_blocks[i]));
  }
  for (const BlockId block : held) {
    device_.release(block, tables.front()->owner());
  }
  return true;
}

std::int32_t KVCacheManager::missing_to_move(std::span<BlockTable* const> tables, CopyKind kind) const {
  std::int32_t missing = num_distinct_blocks({tables.begin(), tables.end()});
  if (!host_tier_) {
    return missing;
  }
  const BlockPool& to = kind == CopyKind::kSwapOut ? host_ : device_;
  std::unordered_set<BlockId> counted;
  for (const BlockTable* table : tables) {
    for (const BlockId block : table->blocks()) {
      const std::optional<BlockId> copy = copy_of(block, kind);
      if (copy && to.ref_count(*copy) > 0 && (tables.size() == 1 || counted.insert(block).second)) {
        --missing;
      }
    }
  }
  return missing;
}

// Cached blocks of the device that tables on their way in need not have copied: from being evicted by the others.
std::vector<BlockId> KVCacheManager::hold_copies(std::span<BlockTable* const> tables, CopyKind kind) {
  std::vector<BlockId> held;
  if (!host_tier_ || kind != CopyKind::kSwapIn) {
    return held;
  }
  for (const BlockTable* table : tables) {
    for (const BlockId block : table->blocks()) {
      if (const std::optional<BlockId> copy = device_copy_of(block)) {
        held.push_back(*copy);
        num_gains_ += device_.take_cached(*copy, tables.front()->owner()) ? 1 : 0;
      }
    }
  }
  return held;
}

std::vector<BlockId> KVCacheManager::device_copies(std::span<BlockTable* const> tables) const {
  std::unordered_set<BlockId> copies;
  for (const BlockTable* table : tables) {
    for (const BlockId block : table->blocks()) {
      if (const std::optional<BlockId> copy = device_copy_of(block)) {
        copies.insert(*copy);
      }
    }
  }
  return {copies.begin(), copies.end()};
}

// Where in the other tier what the block holds will be: where it is already, or in a block of its own.
BlockId KVCacheManager::take_place(BlockId block, CopyKind kind, SequenceId owner) {
  const bool out = kind == CopyKind::kSwapOut;
  if (const std::optional<BlockId> copy = copy_of(block, kind)) {
    (out ? host_ : device_).retain(*copy, owner);
    return *copy;
  }
  if (out) {
    const BlockId host = take_host_block(owner);
    copies_.add(kind, block, host);
    if (host_tier_ && device_.is_cached(block)) {
      host_copies_.add(host, block, prefix_cache_.entry_id(block));
    }
    return host;
  }
  const std::optional<BlockId> device = device_.allocate(owner);
  if (!device) {
    throw_invariant("KVCacheManager: less room than was counted", std::source_location::current());
  }
  copies_.add(kind, block, *device);
  if (host_.is_cached(block) && is_on_device(prefix_cache_.parent(host_node(block)))) {
    ++num_gains_;
    move_entry_in(block, *device, owner);
  }
  return *device;
}

BlockId KVCacheManager::take_host_block(SequenceId owner) {
  const std::optional<BlockId> host = host_.allocate(owner);
  if (!host) {
    throw_invariant("KVCacheManager: less room than was counted", std::source_location::current());
  }
  if (host_tier_) {
    host_copies_.forget(*host);
  }
  return *host;
}

std::optional<BlockId> KVCacheManager::copy_of(BlockId block, CopyKind kind) const {
  return kind == CopyKind::kSwapOut ? host_copy_of(block) : device_copy_of(block);
}

// A host block that somebody holds and that has what this cached block has.
std::optional<BlockId> KVCacheManager::host_copy_of(BlockId device) const {
  if (!host_tier_ || !prefix_cache_.holds(device)) {
    return std::nullopt;
  }
  const BlockId host = host_copies_.host_of(device);
  const bool is_copy = host != HostCopies::kNone && host_copies_.of(host).device == device &&
                       host_copies_.of(host).entry == prefix_cache_.entry_id(device) && host_.ref_count(host) > 0;
  return is_copy ? std::optional(host) : std::nullopt;
}

// The cached block that has what this host block has, which somebody holds.
std::optional<BlockId> KVCacheManager::device_copy_of(BlockId host) const {
  if (!host_tier_ || host_copies_.of(host).entry == 0) {
    return std::nullopt;
  }
  const HostCopies::Note& note = host_copies_.of(host);
  return prefix_cache_.entry_id(note.device) == note.entry ? std::optional(note.device) : std::nullopt;
}

std::int32_t KVCacheManager::num_cached_host_blocks() const {
  std::int32_t count = 0;
  for (BlockId block = 0; block < host_.num_blocks(); ++block) {
    count += host_.is_cached(block) ? 1 : 0;
  }
  return count;
}

void KVCacheManager::evict(BlockId block, SequenceId new_owner) {
  ++num_evicted_;
  if (!demote(block, new_owner)) {
    uncache_in_order(prefix_cache_.erase(block));
  }
}

// Not before those that come after it: nobody could take them without copying this one in first.
bool KVCacheManager::demote(BlockId block, SequenceId new_owner) {
  if (!host_tier_ || prefix_cache_.has_child(block, [&](BlockId child) { return is_on_device(child); })) {
    return false;
  }
  if (const std::optional<BlockId> copy = host_copy_of(block)) {
    prefix_cache_.move(block, host_node(*copy));
    host_.cache(*copy, new_owner);
    return true;
  }
  if (!copies_evicted_ || host_.num_free() == 0) {
    return false;
  }
  const BlockId host = take_host_block(new_owner);
  copies_.add(CopyKind::kSwapOut, block, host);
  ++num_demoted_;
  prefix_cache_.move(block, host_node(host));
  host_.cache(host, new_owner);
  host_.release(host, new_owner);
  return true;
}

// The device block, which has what the host block has, is cached in its place.
void KVCacheManager::move_entry_in(BlockId host, BlockId device, SequenceId owner) {
  prefix_cache_.move(host_node(host), device);
  device_.cache(device, owner);
  host_.uncache(host);
  host_copies_.add(host, device, prefix_cache_.entry_id(device));
}

std::int32_t KVCacheManager::num_distinct_blocks(std::span<const BlockTable* const> tables) {
  if (tables.size() == 1) {
    return tables.front()->size();
  }
  std::unordered_set<BlockId> distinct;
  for (const BlockTable* table : tables) {
    distinct.insert(table->blocks().begin(), table->blocks().end());
  }
  return static_cast<std::int32_t>(distinct.size());
}

void KVCacheManager::check_tiers() const {
  for (BlockId block = 0; block < host_.num_blocks(); ++block) {
    invariant(host_.is_cached(block) == (host_tier_ && prefix_cache_.holds(host_node(block))),
              "KVCacheManager: host pool and cache disagree about what is cached");
  }
  for (BlockId block = 0; prefix_caching_ && block < device_.num_blocks(); ++block) {
    invariant(!prefix_cache_.holds(block) || is_on_device(prefix_cache_.parent(block)),
              "KVCacheManager: a cached block of the device comes after one of the host");
    const std::optional<BlockId> copy = host_copy_of(block);
    invariant(!copy || !host_.is_cached(*copy), "KVCacheManager: two blocks are cached for one");
  }
}

}  // namespace fastpaged
