// KVCacheManager's prefixes: finding them, taking them over, publishing and forgetting them.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <source_location>
#include <utility>

#include "fastpaged/base/check.h"
#include "fastpaged/kv_cache/kv_cache_manager.h"

namespace fastpaged {

PrefixMatch KVCacheManager::match_prefix(std::span<const TokenId> tokens, std::int32_t max_tokens,
                                         std::string_view root) const {
  PrefixMatch match;
  match.generation = prefix_cache_.generation();
  const std::optional<PrefixCache::Node> found_root = prefix_cache_.find_root(root);
  if (!found_root) {
    return match;
  }
  PrefixCache::Node node = *found_root;
  const auto block_size = static_cast<std::size_t>(block_size_);
  std::size_t wanted = std::min(tokens.size(), static_cast<std::size_t>(std::max(0, max_tokens)));
  match.blocks.reserve(wanted / block_size);
  const auto find_next = [&] {  // the block that holds all of the next block's tokens
    return tokens.size() < block_size ? std::nullopt : prefix_cache_.find(node, tokens.first(block_size));
  };
  std::optional<BlockId> next = find_next();
  while (next && wanted >= block_size) {
    node = *next;
    if (is_on_device(node)) {
      match.blocks.push_back(node);
      match.num_in_use += device_.ref_count(node) > 0 ? 1 : 0;
    } else {
      match.host_blocks.push_back(node - device_.num_blocks());
    }
    tokens = tokens.subspan(block_size);
    wanted -= block_size;
    next = find_next();
  }
  const PrefixCache::Beginning beginning =
      next ? PrefixCache::Beginning{*next, static_cast<std::int32_t>(wanted)}
           : prefix_cache_.find_beginning(node, tokens.first(std::min(wanted, block_size)));
  match.num_partial_tokens = beginning.num_tokens;
  match.partial_on_host = beginning.num_tokens > 0 && !is_on_device(beginning.block);
  match.partial_block = match.partial_on_host ? beginning.block - device_.num_blocks() : beginning.block;
  match.num_tokens = match.num_blocks() * block_size_ + beginning.num_tokens;
  return match;
}

std::int32_t KVCacheManager::adopt(BlockTable& table, const PrefixMatch& match, PublishedPrefix& published) {
  check_tier(table, device_);
  invariant(table.size() == 0, "KVCacheManager: a table that is not empty would adopt a prefix");
  published = {.num_blocks = 0, .last_entry = 0, .epoch = epoch_};
  if (match.num_tokens == 0) {
    return 0;
  }
  invariant(match.generation == prefix_cache_.generation(),
            "KVCacheManager: a match from before something was forgotten");
  std::vector<BlockId> blocks;
  blocks.reserve(static_cast<std::size_t>(match.num_blocks()) + 1);
  for (const BlockId block : match.blocks) {  // before anything is allocated, which might evict them
    num_gains_ += device_.take_cached(block, table.owner()) ? 1 : 0;
    prefix_cache_.touch(block);
    blocks.push_back(block);
  }
  const bool copies_partial = has_room_for_partial(match);
  if (copies_partial) {
    (match.partial_on_host ? host_ : device_).take_cached(match.partial_block, table.owner());
  }
  adopt_host_blocks(match, table.owner(), blocks);
  published.num_blocks = static_cast<std::int32_t>(blocks.size());
  published.last_entry = blocks.empty() ? 0 : prefix_cache_.entry_id(blocks.back());
  if (copies_partial) {
    blocks.push_back(copy_partial(match, table.owner()));
  }
  table.move_to(device_, std::move(blocks));
  return published.num_blocks * block_size_ + (copies_partial ? match.num_partial_tokens : 0);
}

// Beside the whole blocks that are still to be copied in. The source of a copy is not overwritten by it.
bool KVCacheManager::has_room_for_partial(const PrefixMatch& match) const {
  if (match.num_partial_tokens == 0) {
    return false;
  }
  const bool source_is_free = !match.partial_on_host && device_.ref_count(match.partial_block) == 0;
  return device_.num_free() - (source_is_free ? 1 : 0) > static_cast<std::int32_t>(match.host_blocks.size());
}

// All of them are held before anything is allocated, which might evict them. Each is given back once it is copied, so
// that what makes way for the next one finds room on the host.
void KVCacheManager::adopt_host_blocks(const PrefixMatch& match, SequenceId owner, std::vector<BlockId>& blocks) {
  for (const BlockId host : match.host_blocks) {
    host_.take_cached(host, owner);
  }
  for (const BlockId host : match.host_blocks) {
    if (const std::optional<BlockId> block = device_.allocate(owner)) {
      copies_.add(CopyKind::kSwapIn, host, *block);
      ++num_promoted_;
      ++num_gains_;
      move_entry_in(host, *block, owner);
      prefix_cache_.touch(*block);
      blocks.push_back(*block);
    }
    host_.release(host, owner);
  }
}

// Of the block that is held already, so that its copy is another one.
BlockId KVCacheManager::copy_partial(const PrefixMatch& match, SequenceId owner) {
  const std::optional<BlockId> copy = device_.allocate(owner);
  if (!copy) {
    throw_invariant("KVCacheManager: less room than was counted", std::source_location::current());
  }
  copies_.add(match.partial_on_host ? CopyKind::kSwapIn : CopyKind::kCopyOnWrite, match.partial_block, *copy);
  ++num_partial_copies_;
  num_promoted_ += match.partial_on_host ? 1 : 0;
  prefix_cache_.touch(match.partial_on_host ? host_node(match.partial_block) : match.partial_block);
  (match.partial_on_host ? host_ : device_).release(match.partial_block, owner);
  return *copy;
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
  if (*cached != own) {
    prefix_cache_.touch(*cached);
  }
  if (!is_on_device(*cached)) {
    move_entry_in(*cached - device_.num_blocks(), own, table.owner());
    ++num_gains_;
  } else if (*cached != own) {
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

void KVCacheManager::uncache(PrefixCache::Node node) {
  is_on_device(node) ? device_.uncache(node) : host_.uncache(node - device_.num_blocks());
}

void KVCacheManager::forget(PrefixCache::Node node) {
  uncache(node);
  for (const PrefixCache::Node descendant : prefix_cache_.erase(node)) {
    uncache(descendant);
  }
}

// Nobody holds a cached block without those before it: what comes after the first of its own is its own, or free.
void KVCacheManager::forget_own(const BlockTable& table) {
  const auto is_own = [&](BlockId block) { return device_.is_cached(block) && device_.ref_count(block) == 1; };
  if (!prefix_caching_ || table.size() == 0) {
    return;
  }
  check_tier(table, device_);
  const auto first = std::ranges::find_if(table.blocks(), is_own);
  if (first != table.blocks().end()) {
    forget_in_order(std::span(&*first, 1));
  }
}

void KVCacheManager::forget_written(std::span<const BlockCopy> copies) {
  std::vector<PrefixCache::Node> nodes;
  for (const BlockCopy& copy : copies) {
    for (BlockId block = copy.destination; block < copy.destination + copy.num_blocks; ++block) {
      const bool on_host = copy.kind == CopyKind::kSwapOut;
      if ((on_host ? host_ : device_).is_cached(block)) {
        nodes.push_back(on_host ? host_node(block) : block);
      }
    }
  }
  forget_in_order(nodes);
}

// With all that comes after them.
void KVCacheManager::forget_in_order(std::span<const PrefixCache::Node> nodes) {
  std::vector<PrefixCache::Node> gone;
  for (const PrefixCache::Node node : nodes) {
    if (prefix_cache_.holds(node)) {  // still: it may have gone with another one
      gone.push_back(node);
      const std::vector<PrefixCache::Node> descendants = prefix_cache_.erase(node);
      gone.insert(gone.end(), descendants.begin(), descendants.end());
    }
  }
  uncache_in_order(gone);
}

void KVCacheManager::uncache_in_order(std::span<const PrefixCache::Node> gone) {
  if (gone.empty()) {
    return;
  }
  const auto uncache_free = [&](BlockPool& pool, PrefixCache::Node first_node) {
    const std::vector<BlockId> free = pool.cached_free_blocks();
    for (std::size_t i = free.size(); i-- > 0;) {
      if (!prefix_cache_.holds(first_node + free[i])) {
        pool.uncache(free[i]);
      }
    }
  };
  uncache_free(device_, 0);
  if (host_tier_) {
    uncache_free(host_, host_node(0));
  }
  for (const PrefixCache::Node node : gone) {
    const bool on_device = is_on_device(node);
    if (on_device ? device_.is_cached(node) : host_.is_cached(node - device_.num_blocks())) {
      uncache(node);
    }
  }
}

void KVCacheManager::reset_prefix_cache() {
  ++epoch_;
  for (BlockPool* pool : {&device_, &host_}) {
    const std::vector<BlockId> free = pool->cached_free_blocks();
    for (std::size_t i = free.size(); i-- > 0;) {  // in reverse: they stay in the order they would be handed out in
      pool->uncache(free[i]);
    }
    for (BlockId block = 0; block < pool->num_blocks(); ++block) {
      if (pool->is_cached(block)) {
        pool->uncache(block);
      }
    }
  }
  prefix_cache_.clear();
}

}  // namespace fastpaged
