#include "fastpaged/kv_cache/prefix_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fastpaged/base/check.h"
#include "fastpaged/kv_cache/content_hash.h"

namespace fastpaged {

PrefixCache::PrefixCache(std::int32_t num_blocks, std::int32_t block_size, std::uint64_t hash_mask)
    : block_size_(static_cast<std::size_t>(block_size)),
      hash_mask_(hash_mask),
      entries_(static_cast<std::size_t>(num_blocks)),
      tokens_(static_cast<std::size_t>(num_blocks) * block_size_),
      index_(num_blocks) {}

std::span<const TokenId> PrefixCache::tokens(BlockId block) const {
  return std::span(tokens_).subspan(static_cast<std::size_t>(block) * block_size_, block_size_);
}

std::optional<PrefixCache::Node> PrefixCache::find_root(std::string_view name) const {
  const auto found = root_by_name_.find(name);
  return found == root_by_name_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<BlockId> PrefixCache::find(Node parent, std::span<const TokenId> tokens) const {
  return index_.find(hash(parent, tokens), [&](BlockId block) {
    return entries_[block].parent == parent && std::ranges::equal(this->tokens(block), tokens);
  });
}

PrefixCache::Beginning PrefixCache::find_beginning(Node parent, std::span<const TokenId> tokens) const {
  Beginning best;
  BlockId child = first_child(parent);
  for (std::int32_t i = 0; i < kMaxChildrenTried && child != kNone; ++i, child = entries_[child].next) {
    const std::span<const TokenId> held = this->tokens(child);
    const auto num_equal = static_cast<std::int32_t>(std::ranges::mismatch(held, tokens).in1 - held.begin());
    if (num_equal > best.num_tokens) {
      best = {child, num_equal};
    }
  }
  return best;
}

PrefixCache::Node PrefixCache::make_root(std::string_view name) {
  if (const std::optional<Node> known = find_root(name)) {
    return *known;
  }
  Node root = -1 - static_cast<Node>(roots_.size());
  if (unused_roots_.empty()) {
    roots_.emplace_back();
  } else {
    root = unused_roots_.back();
    unused_roots_.pop_back();
  }
  roots_[root_index(root)].name = name;
  root_by_name_.emplace(name, root);
  return root;
}

void PrefixCache::add(BlockId block, Node parent, std::span<const TokenId> tokens) {
  invariant(!holds(block), "PrefixCache: a block that is cached would be cached again");
  entries_[block] = {.id = ++last_id_, .hash = hash(parent, tokens), .parent = parent};
  std::ranges::copy(tokens, tokens_.begin() + static_cast<std::ptrdiff_t>(block * block_size_));
  index_.insert(entries_[block].hash, block);
  link(block);
  if (events_ != nullptr) {
    parent < 0 ? events_->stored_first(block, root_hash(root_name(parent)), tokens)
               : events_->stored(block, parent, tokens);
  }
}

void PrefixCache::touch(BlockId block) {
  if (entries_[block].prev != kNone) {
    unlink(block);
    link(block);
  }
}

void PrefixCache::move(BlockId from, BlockId to) {
  invariant(holds(from) && !holds(to), "PrefixCache: what is not there would be moved, or to where something is");
  ++num_moved_;
  entries_[to] = std::exchange(entries_[from], {});
  const Entry& entry = entries_[to];
  std::ranges::copy(tokens(from), tokens_.begin() + static_cast<std::ptrdiff_t>(to * block_size_));
  index_.replace(entry.hash, from, to);
  (entry.prev == kNone ? first_child(entry.parent) : entries_[entry.prev].next) = to;
  if (entry.next != kNone) {
    entries_[entry.next].prev = to;
  }
  for (BlockId child = entry.first_child; child != kNone; child = entries_[child].next) {
    entries_[child].parent = to;
  }
  if (events_ != nullptr) {
    events_->moved(from, to);
  }
}

std::vector<BlockId> PrefixCache::erase(BlockId block) {
  invariant(holds(block), "PrefixCache: a block that is not cached would be forgotten");
  std::vector<BlockId> descendants;
  for (BlockId child = entries_[block].first_child; child != kNone; child = entries_[child].next) {
    descendants.push_back(child);
  }
  for (std::size_t i = 0; i < descendants.size(); ++i) {  // which grows on the way
    for (BlockId child = entries_[descendants[i]].first_child; child != kNone; child = entries_[child].next) {
      descendants.push_back(child);
    }
  }
  std::ranges::for_each(descendants.rbegin(), descendants.rend(), [&](BlockId gone) { erase_one(gone); });
  erase_one(block);
  return descendants;
}

void PrefixCache::clear() {
  num_erased_ += static_cast<std::uint64_t>(num_cached());
  std::ranges::fill(entries_, Entry{});
  index_.clear();
  roots_.clear();
  unused_roots_.clear();
  root_by_name_.clear();
  if (events_ != nullptr) {
    events_->cleared();
  }
}

BlockId& PrefixCache::first_child(Node node) {
  return node < 0 ? roots_[root_index(node)].first_child : entries_[node].first_child;
}

BlockId PrefixCache::first_child(Node node) const {
  return node < 0 ? roots_[root_index(node)].first_child : entries_[node].first_child;
}

// Two tokens at a time; each step is a bijection of what has come so far, so that only their number can fold keys.
std::uint64_t PrefixCache::hash(Node parent, std::span<const TokenId> tokens) const {
  constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15;
  std::uint64_t sum = (parent < 0 ? static_cast<std::uint64_t>(std::int64_t{parent}) : entries_[parent].id) * kFactor;
  const auto stir = [&](std::uint64_t word) {
    sum = (sum ^ word) * kFactor;
    sum ^= sum >> 32;
  };
  std::size_t i = 0;
  for (; i + 2 <= tokens.size(); i += 2) {
    std::uint64_t word = 0;
    std::memcpy(&word, &tokens[i], sizeof(word));
    stir(word);
  }
  if (i < tokens.size()) {
    stir(static_cast<std::uint32_t>(tokens[i]));
  }
  stir(0);
  return sum & hash_mask_;
}

void PrefixCache::link(BlockId block) {
  BlockId& first = first_child(entries_[block].parent);
  entries_[block].prev = kNone;
  entries_[block].next = first;
  if (first != kNone) {
    entries_[first].prev = block;
  }
  first = block;
}

void PrefixCache::unlink(BlockId block) {
  const Entry& entry = entries_[block];
  (entry.prev == kNone ? first_child(entry.parent) : entries_[entry.prev].next) = entry.next;
  if (entry.next != kNone) {
    entries_[entry.next].prev = entry.prev;
  }
}

void PrefixCache::erase_one(BlockId block) {
  if (events_ != nullptr) {
    events_->removed(block);
  }
  const Node parent = entries_[block].parent;
  ++num_erased_;
  index_.erase(entries_[block].hash, block);
  unlink(block);
  entries_[block] = {};
  if (parent < 0 && first_child(parent) == kNone) {
    root_by_name_.erase(roots_[root_index(parent)].name);
    unused_roots_.push_back(parent);
  }
}

void PrefixCache::check_invariants() const {
  index_.check_invariants();
  std::int32_t num_cached = 0;
  std::int32_t num_children = 0;
  for (BlockId block = 0; block < static_cast<BlockId>(entries_.size()); ++block) {
    if (!holds(block)) {
      continue;
    }
    ++num_cached;
    const Node parent = entries_[block].parent;
    invariant(parent < 0 || holds(parent), "PrefixCache: a cached block's parent is not cached");
    invariant(entries_[block].id <= last_id_, "PrefixCache: an entry from the future");
    invariant(entries_[block].hash == hash(parent, tokens(block)), "PrefixCache: a stale hash");
    invariant(find(parent, tokens(block)) == block, "PrefixCache: a cached block is not found by its key");
    check_children(block, num_children);
  }
  for (const auto& [name, root] : root_by_name_) {
    invariant(roots_.at(root_index(root)).name == name, "PrefixCache: a root under another's name");
    invariant(first_child(root) != kNone, "PrefixCache: a root without children");
    check_children(root, num_children);
  }
  invariant(root_by_name_.size() + unused_roots_.size() == roots_.size(), "PrefixCache: a root is lost");
  invariant(num_cached == index_.size(), "PrefixCache: index and entries disagree");
  invariant(num_cached == num_children, "PrefixCache: a cached block is nobody's child");
}

void PrefixCache::check_children(Node node, std::int32_t& num_seen) const {
  BlockId before = kNone;
  for (BlockId child = first_child(node); child != kNone; child = entries_[child].next) {
    invariant(holds(child) && entries_[child].parent == node, "PrefixCache: a child of another parent");
    invariant(entries_[child].prev == before, "PrefixCache: two siblings disagree");
    invariant(++num_seen <= index_.size(), "PrefixCache: a block is a child twice");
    before = child;
  }
}

}  // namespace fastpaged
