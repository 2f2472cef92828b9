#include "proofs/cache_oracle.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace fastpaged::test {

void CacheOracle::pin(PinId id, std::vector<TokenId> tokens, const std::string& root) {
  know_root(root);
  REQUIRE(pins_.emplace(id, Pin{std::move(tokens), root}).second);
}

void CacheOracle::check(const std::set<PrefixCache::Node>& in_doubt) {
  const PrefixCache& cache = scheduler_->kv_cache().prefix_cache();
  for (BlockId block = 0; scheduler_->config().prefix_caching && block < cache.num_blocks(); ++block) {
    if (cache.holds(block) && !in_doubt.contains(block)) {
      check_block(block);
    }
  }
  check_pins();
}

// What its key says, from the first block on, is what is there.
void CacheOracle::check_block(PrefixCache::Node block) {
  const KVCacheManager& kv_cache = scheduler_->kv_cache();
  PrefixCache::Node node = 0;
  const std::vector<TokenId> text = text_of(block, node);
  const auto root = std::ranges::find_if(
      roots_, [&](const std::string& name) { return kv_cache.prefix_cache().find_root(name) == node; });
  REQUIRE(root != roots_.end());
  const std::vector<History> all = histories(text, *root);
  const std::size_t first = text.size() - static_cast<std::size_t>(kv_cache.block_size());
  const bool on_host = block >= kv_cache.num_blocks();
  const BlockPool& pool = on_host ? kv_cache.host_pool() : kv_cache.device_pool();
  for (std::int32_t offset = 0; offset < kv_cache.block_size(); ++offset) {
    CAPTURE(block);
    CAPTURE(offset);
    num_host_slots_checked_ += on_host ? 1 : 0;
    REQUIRE(kv_->holds(pool, on_host ? block - kv_cache.num_blocks() : block, offset,
                       all.at(first + static_cast<std::size_t>(offset))));
    ++num_slots_checked_;
  }
}

std::vector<TokenId> CacheOracle::text_of(BlockId block, PrefixCache::Node& root) const {
  const PrefixCache& cache = scheduler_->kv_cache().prefix_cache();
  std::vector<TokenId> text;
  for (root = block; root >= 0; root = cache.parent(root)) {
    const std::span<const TokenId> tokens = cache.tokens(root);
    text.insert(text.begin(), tokens.begin(), tokens.end());
  }
  return text;
}

// A pin holds the beginning of its prefix, so that whoever looks for that finds it, in use.
void CacheOracle::check_pins() const {
  const std::vector<PinnedPrefix> list = scheduler_->pins();
  REQUIRE(list.size() == pins_.size());
  std::int32_t num_blocks = 0;
  for (const PinnedPrefix& pinned : list) {
    const Pin& pin = pins_.at(pinned.id);
    const auto num_tokens = static_cast<std::int32_t>(pin.tokens.size());
    REQUIRE(pinned.num_tokens == num_tokens);
    REQUIRE(pinned.num_blocks == num_tokens / scheduler_->config().block_size);
    REQUIRE(pinned.num_held_blocks <= pinned.num_blocks);
    const PrefixMatch match = scheduler_->kv_cache().match_prefix(pin.tokens, num_tokens, pin.root);
    REQUIRE(match.num_in_use >= pinned.num_held_blocks);
    num_blocks += pinned.num_blocks;
  }
  REQUIRE(num_blocks <= scheduler_->config().max_pinned_blocks);
}

}  // namespace fastpaged::test
