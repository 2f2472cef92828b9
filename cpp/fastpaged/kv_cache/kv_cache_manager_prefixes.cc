// KVCacheManager's prefixes: finding them, taking them over, publishing and forgetting them.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "fastpaged/base/check.h"
#include "fastpaged/kv_cache/kv_cache_manager.h"

namespace fastpaged {

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
  const auto find_next = [&] {  // the block that holds all of the next block's tokens
    return tokens.size() < block_size ? std::nullopt : prefix_cache_.find(node, tokens.first(block_size));
  };
  std::optional<BlockId> next = find_next();
  while (next && wanted >= block_size) {
    node = *next;
    match.blocks.push_back(node);
    match.num_in_use += device_.ref_count(node) > 0 ? 1 : 0;
    tokens = tokens.subspan(block_size);
    wanted -= block_size;
    next = find_next();
  }
  const PrefixCache::Beginning beginning =
      next ? PrefixCache::Beginning{*next, static_cast<std::int32_t>(wanted)}
           : prefix_cache_.find_beginning(node, tokens.first(std::min(wanted, block_size)));
  match.partial_block = beginning.block;
  match.num_partial_tokens = beginning.num_tokens;
  match.num_tokens = static_cast<std::int32_t>(match.blocks.size()) * block_size_ + beginning.num_tokens;
  return match;
}

std::int32_t KVCacheManager::adopt(BlockTable& table, const PrefixMatch& match, PublishedPrefix& published) {
  check_tier(table, device_);
  invariant(table.size() == 0, "KVCacheManager: a table that is not empty would adopt a prefix");
  published = {.num_blocks = 0, .last_entry = 0, .epoch = epoch_};
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
  if (!blocks.empty()) {
    published.num_blocks = static_cast<std::int32_t>(blocks.size());
    published.last_entry = prefix_cache_.entry_id(blocks.back());
  }
  std::int32_t num_tokens = published.num_blocks * block_size_;
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
  if (*cached != own) {
    prefix_cache_.touch(*cached);
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

// Nobody holds a cached block without those before it: what comes after the first of its own is its own, or free. Free
// blocks stay in the order in which they would be handed out, and come before all others.
void KVCacheManager::forget_own(const BlockTable& table) {
  const auto is_own = [&](BlockId block) { return device_.is_cached(block) && device_.ref_count(block) == 1; };
  if (!prefix_caching_ || table.size() == 0) {
    return;
  }
  check_tier(table, device_);
  const auto first = std::ranges::find_if(table.blocks(), is_own);
  if (first == table.blocks().end()) {
    return;
  }
  const std::vector<BlockId> descendants = prefix_cache_.erase(*first);
  device_.uncache(*first);
  const std::vector<BlockId> free = device_.cached_free_blocks();
  for (std::size_t i = free.size(); i-- > 0;) {
    if (!prefix_cache_.holds(free[i])) {
      device_.uncache(free[i]);
    }
  }
  for (const BlockId descendant : descendants) {
    if (device_.is_cached(descendant)) {
      device_.uncache(descendant);
    }
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

}  // namespace fastpaged
