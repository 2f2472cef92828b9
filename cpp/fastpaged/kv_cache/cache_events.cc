#include "fastpaged/kv_cache/cache_events.h"

#include <cstddef>
#include <utility>

#include "fastpaged/kv_cache/content_hash.h"

namespace fastpaged {

CacheEvents::CacheEvents(std::int64_t max_events, std::int32_t num_blocks, std::int32_t num_host_blocks)
    : max_events_(max_events), num_blocks_(num_blocks) {
  if (on()) {
    hashes_.resize(static_cast<std::size_t>(num_blocks) + static_cast<std::size_t>(num_host_blocks));
  }
}

void CacheEvents::stored_first(BlockId block, std::uint64_t root, std::span<const TokenId> tokens) {
  hashes_[block] = block_hash(root, tokens);
  add({.tier = tier_of(block), .hash = hashes_[block], .num_tokens = static_cast<std::int32_t>(tokens.size())});
}

void CacheEvents::stored(BlockId block, BlockId parent, std::span<const TokenId> tokens) {
  hashes_[block] = block_hash(hashes_[parent], tokens);
  add({.tier = tier_of(block),
       .hash = hashes_[block],
       .parent_hash = hashes_[parent],
       .num_tokens = static_cast<std::int32_t>(tokens.size())});
}

void CacheEvents::removed(BlockId block) {
  add({.kind = CacheEvent::Kind::kRemoved, .tier = tier_of(block), .hash = hashes_[block]});
}

void CacheEvents::moved(BlockId from, BlockId to) {
  hashes_[to] = hashes_[from];
  if (tier_of(from) != tier_of(to)) {
    add({.kind = CacheEvent::Kind::kMoved, .tier = tier_of(to), .hash = hashes_[to]});
  }
}

void CacheEvents::cleared() {
  add({.kind = CacheEvent::Kind::kCleared});
}

CacheEvents::Taken CacheEvents::take() {
  Taken taken = {.events = {events_.begin(), events_.end()}, .num_dropped = std::exchange(num_dropped_, 0)};
  events_.clear();
  return taken;
}

void CacheEvents::add(const CacheEvent& event) {
  if (std::cmp_equal(events_.size(), max_events_)) {
    events_.pop_front();
    ++num_dropped_;
  }
  events_.push_back(event);
}

}  // namespace fastpaged
