#include "fastpaged/kv_cache/kv_cache_manager.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <source_location>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "fastpaged/base/check.h"

namespace fastpaged {

namespace {

BlockId take(BlockPool& pool, SequenceId owner) {
  const std::optional<BlockId> block = pool.allocate(owner);
  if (!block) {
    throw_invariant("KVCacheManager: the pool has fewer free blocks than it says", std::source_location::current());
  }
  return *block;
}

// Before the pools are made: a wrong size must not cost gigabytes first.
std::int32_t valid_block_size(std::int32_t num_blocks, std::int32_t block_size, std::int32_t num_host_blocks) {
  require(num_blocks > 0, [&] { return "num_blocks must be > 0, got " + std::to_string(num_blocks); });
  require(num_host_blocks >= 0, [&] { return "num_host_blocks must be >= 0, got " + std::to_string(num_host_blocks); });
  constexpr std::int32_t kMaxBlockSize = KVCacheManager::kMaxBlockSize;
  require(block_size >= 1 && block_size <= kMaxBlockSize, [&] {
    return "block_size must be in [1, " + std::to_string(kMaxBlockSize) + "], got " + std::to_string(block_size);
  });
  constexpr std::int64_t kMaxSlots = std::numeric_limits<std::int32_t>::max();
  require(std::int64_t{num_blocks} * block_size <= kMaxSlots, [&] {
    return "num_blocks x block_size must be <= " + std::to_string(kMaxSlots) + ", got " + std::to_string(num_blocks) +
           " x " + std::to_string(block_size);
  });
  return block_size;
}

void check_tier(const BlockTable& table, const BlockPool& tier) {
  if (&table.pool() != &tier) {
    throw_invariant("sequence " + std::to_string(table.owner()) + " holds blocks of the " + table.pool().name() +
                        " pool where it must hold the " + tier.name() + " pool's",
                    std::source_location::current());
  }
}

}  // namespace

KVCacheManager::KVCacheManager(std::int32_t num_blocks, std::int32_t block_size, std::int32_t num_host_blocks,
                               PrefixCaching prefix_caching)
    : block_size_(valid_block_size(num_blocks, block_size, num_host_blocks)),
      prefix_caching_(prefix_caching.enabled),
      device_("device", num_blocks),
      host_("host", num_host_blocks),
      prefix_cache_(prefix_caching.enabled ? num_blocks : 0, block_size, prefix_caching.hash_mask) {
  device_.on_eviction([this](BlockId block) {
    ++num_evicted_;
    for (const BlockId descendant : prefix_cache_.erase(block)) {
      device_.uncache(descendant);
    }
  });
}

std::int64_t KVCacheManager::capacity() const {
  return std::int64_t{device_.num_blocks()} * block_size_;
}

std::int32_t KVCacheManager::blocks_for(std::int64_t num_tokens) const {
  require(num_tokens >= 0 && num_tokens <= std::numeric_limits<std::int32_t>::max(),
          [&] { return "num_tokens must be in [0, 2147483647], got " + std::to_string(num_tokens); });
  return static_cast<std::int32_t>((num_tokens + block_size_ - 1) / block_size_);
}

KVCacheManager::Range KVCacheManager::written_blocks(std::int64_t first_token, std::int64_t num_tokens) const {
  if (num_tokens == 0) {
    return {0, 0};  // nothing to write, in the middle of a block too
  }
  return {static_cast<std::int32_t>(first_token / block_size_), blocks_for(first_token + num_tokens)};
}

std::int32_t KVCacheManager::missing_blocks(const BlockTable& table, std::int64_t first_token,
                                            std::int64_t num_tokens) const {
  const Range written = written_blocks(first_token, num_tokens);
  std::int32_t missing = std::max(0, written.end - table.size());
  for (std::int32_t i = written.begin; i < std::min(written.end, table.size()); ++i) {
    missing += table.is_shared(i) ? 1 : 0;
  }
  return missing;
}

bool KVCacheManager::reserve(BlockTable& table, std::int64_t first_token, std::int64_t num_tokens) {
  check_tier(table, device_);
  const Range written = written_blocks(first_token, num_tokens);
  if (missing_blocks(table, first_token, num_tokens) > device_.num_free()) {
    return false;
  }
  const std::int32_t old_size = table.size();
  invariant(table.grow_to(written.end), "KVCacheManager: less room than was counted");
  for (std::int32_t i = written.begin; i < std::min(written.end, old_size); ++i) {
    if (table.is_shared(i)) {
      const BlockId copy = take(device_, table.owner());
      copies_.add(CopyKind::kCopyOnWrite, table.blocks()[i], copy);
      table.replace(i, copy);
    } else if (device_.is_cached(table.blocks()[i])) {
      forget(table.blocks()[i]);  // a copy would be one block more than there would be without the cache
    }
  }
  return true;
}

void KVCacheManager::check_writable(const BlockTable& table, std::int64_t first_token, std::int64_t num_tokens) const {
  check_tier(table, device_);
  const Range written = written_blocks(first_token, num_tokens);
  if (written.end > table.size()) {
    throw_invariant("sequence " + std::to_string(table.owner()) + " would write into block " +
                        std::to_string(written.end - 1) + " of its table, which has " + std::to_string(table.size()),
                    std::source_location::current());
  }
  for (std::int32_t i = written.begin; i < written.end; ++i) {
    const BlockId block = table.blocks()[i];
    const auto refuse = [&](const std::string& why) {
      throw_invariant("sequence " + std::to_string(table.owner()) + " would write into block " + std::to_string(block) +
                          ", which " + why,
                      std::source_location::current());
    };
    if (table.is_shared(i)) {
      refuse(std::to_string(device_.ref_count(block)) + " tables share");
    }
    if (device_.is_cached(block)) {
      refuse("is cached");
    }
  }
}

bool KVCacheManager::swap_out(std::span<BlockTable* const> tables) {
  return move(tables, CopyKind::kSwapOut, device_, host_);
}

bool KVCacheManager::swap_in(std::span<BlockTable* const> tables) {
  return move(tables, CopyKind::kSwapIn, host_, device_);
}

bool KVCacheManager::move(std::span<BlockTable* const> tables, CopyKind kind, const BlockPool& from, BlockPool& to) {
  for (const BlockTable* table : tables) {
    check_tier(*table, from);
  }
  if (num_distinct_blocks({tables.begin(), tables.end()}) > to.num_free()) {
    return false;
  }
  const bool may_share = tables.size() > 1;
  std::unordered_map<BlockId, BlockId> moved;  // where tables may share blocks
  const auto place_of = [&](BlockId block, SequenceId owner) {
    const auto known = may_share ? moved.find(block) : moved.end();
    if (known != moved.end()) {
      to.retain(known->second, owner);
      return known->second;
    }
    const BlockId place = take(to, owner);
    copies_.add(kind, block, place);
    if (may_share) {
      moved.emplace(block, place);
    }
    return place;
  };
  std::vector<std::vector<BlockId>> new_blocks;
  for (const BlockTable* table : tables) {
    std::vector<BlockId>& blocks = new_blocks.emplace_back();
    blocks.reserve(table->blocks().size());
    for (const BlockId block : table->blocks()) {
      blocks.push_back(place_of(block, table->owner()));
    }
  }
  // Given back in reverse, as they were taken: the next tables find them in order.
  for (std::size_t i = tables.size(); i-- > 0;) {
    tables[i]->move_to(to, std::move(new_blocks[i]));
  }
  return true;
}

PrefixMatch KVCacheManager::match_prefix(std::span<const TokenId> tokens, std::int32_t max_tokens,
                                         std::string_view root) const {
  PrefixMatch match;
  match.generation = prefix_cache_.num_erased();
  const std::optional<PrefixCache::Node> found_root = prefix_cache_.find_root(root);
  if (!found_root) {
    return match;
  }
  PrefixCache::Node node = *found_root;
  const auto block_size = static_cast<std::size_t>(block_size_);
  std::size_t wanted = std::min(tokens.size(), static_cast<std::size_t>(std::max(0, max_tokens)));
  match.blocks.reserve(wanted / block_size);
  std::optional<BlockId> whole;  // whose tokens come next, all of them
  const auto find_whole = [&] {
    whole = tokens.size() < block_size ? std::nullopt : prefix_cache_.find(node, tokens.first(block_size));
    return whole.has_value();
  };
  while (find_whole() && wanted >= block_size) {
    node = *whole;
    match.blocks.push_back(node);
    match.num_in_use += device_.ref_count(node) > 0 ? 1 : 0;
    tokens = tokens.subspan(block_size);
    wanted -= block_size;
  }
  const PrefixCache::Beginning beginning =
      whole ? PrefixCache::Beginning{*whole, static_cast<std::int32_t>(wanted)}
            : prefix_cache_.find_beginning(node, tokens.first(std::min(wanted, block_size)));
  match.partial_block = beginning.block;
  match.num_partial_tokens = beginning.num_tokens;
  match.num_tokens = static_cast<std::int32_t>(match.blocks.size()) * block_size_ + beginning.num_tokens;
  return match;
}

std::int32_t KVCacheManager::adopt(BlockTable& table, const PrefixMatch& match) {
  check_tier(table, device_);
  invariant(table.size() == 0, "KVCacheManager: a table that is not empty would adopt a prefix");
  if (match.num_tokens == 0) {
    return 0;
  }
  invariant(match.generation == prefix_cache_.num_erased(),
            "KVCacheManager: a match from before something was forgotten");
  std::vector<BlockId> blocks;
  blocks.reserve(match.blocks.size() + 1);
  for (const BlockId block : match.blocks) {  // before anything is allocated, which might evict them
    num_gains_ += device_.take_cached(block, table.owner()) ? 1 : 0;
    prefix_cache_.touch(block);
    blocks.push_back(block);
  }
  std::int32_t num_tokens = static_cast<std::int32_t>(blocks.size()) * block_size_;
  if (match.num_partial_tokens > 0) {
    device_.take_cached(match.partial_block, table.owner());  // so that its copy is another one
    prefix_cache_.touch(match.partial_block);
    if (const std::optional<BlockId> copy = device_.allocate(table.owner())) {
      copies_.add(CopyKind::kCopyOnWrite, match.partial_block, *copy);
      ++num_partial_copies_;
      blocks.push_back(*copy);
      num_tokens += match.num_partial_tokens;
    }
    device_.release(match.partial_block, table.owner());
  }
  table.move_to(device_, std::move(blocks));
  return num_tokens;
}

void KVCacheManager::publish(BlockTable& table, std::span<const TokenId> tokens, std::int32_t num_computed,
                             std::string_view root, PublishedPrefix& published) {
  if (!prefix_caching_) {
    return;
  }
  check_tier(table, device_);
  if (published.epoch == 0) {
    published.epoch = epoch_;
  }
  if (published.epoch != epoch_) {
    return;
  }
  const std::int32_t num_full = num_computed / block_size_;
  invariant(num_computed <= std::ssize(tokens) && num_full <= table.size(),
            "KVCacheManager: more would be published than there is");
  if (published.num_blocks > num_full || !is_published(table, published)) {
    published.num_blocks = 0;
  }
  const auto block_size = static_cast<std::size_t>(block_size_);
  for (; published.num_blocks < num_full; ++published.num_blocks) {
    const std::int32_t index = published.num_blocks;
    publish_block(table, index, index == 0 ? prefix_cache_.make_root(root) : table.blocks()[index - 1],
                  tokens.subspan(static_cast<std::size_t>(index) * block_size, block_size));
    published.last_entry = prefix_cache_.entry_id(table.blocks()[index]);
  }
}

void KVCacheManager::publish_block(BlockTable& table, std::int32_t index, PrefixCache::Node parent,
                                   std::span<const TokenId> tokens) {
  const BlockId own = table.blocks()[index];
  const std::optional<BlockId> cached = prefix_cache_.find(parent, tokens);
  if (!cached) {
    prefix_cache_.add(own, parent, tokens);
    device_.cache(own, table.owner());
    ++num_gains_;
    return;
  }
  prefix_cache_.touch(*cached);
  if (*cached != own) {
    num_gains_ += device_.take_cached(*cached, table.owner()) ? 1 : 0;
    table.replace(index, *cached);
  }
}

// Not so if the table came to other blocks since (from the other tier), or if they were evicted or written into while a
// branch held them.
bool KVCacheManager::is_published(const BlockTable& table, const PublishedPrefix& published) const {
  return published.num_blocks == 0 ||
         prefix_cache_.entry_id(table.blocks()[published.num_blocks - 1]) == published.last_entry;
}

void KVCacheManager::forget(BlockId block) {
  device_.uncache(block);
  for (const BlockId descendant : prefix_cache_.erase(block)) {
    device_.uncache(descendant);
  }
}

void KVCacheManager::reset_prefix_cache() {
  ++epoch_;
  const std::vector<BlockId> free = device_.cached_free_blocks();
  for (std::size_t i = free.size(); i-- > 0;) {  // in reverse: they stay in the order in which they would be handed out
    device_.uncache(free[i]);
  }
  for (BlockId block = 0; block < device_.num_blocks(); ++block) {
    if (device_.is_cached(block)) {
      device_.uncache(block);
    }
  }
  prefix_cache_.clear();
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

void KVCacheManager::check_invariants() const {
  device_.check_invariants();
  host_.check_invariants();
  prefix_cache_.check_invariants();
  for (BlockId block = 0; block < device_.num_blocks(); ++block) {
    invariant(device_.is_cached(block) == (prefix_caching_ && prefix_cache_.holds(block)),
              "KVCacheManager: pool and cache disagree about what is cached");
  }
  for (BlockId block = 0; block < host_.num_blocks(); ++block) {
    invariant(!host_.is_cached(block), "KVCacheManager: a host block is cached");
  }
}

}  // namespace fastpaged
