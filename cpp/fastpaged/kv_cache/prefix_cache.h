// PrefixCache: which full block holds the K and V of which tokens, and after which others. It knows ids and tokens; who
// holds a block, which tier it is of, and which one has to go, is not its business. What a block holds may move to
// another one.
//
// The cached blocks are a forest. A node is a cached block or a root; a root is a name (a tenant's salt), so that
// nothing is ever shared between two of them. A block's key is its parent node and its own tokens. A hash index finds
// the key; what it finds is compared, parent and every token, so that no collision can give a wrong block. The parent
// counts in the hash by what it holds, not by where that lies, so that moving it costs its children a word each.
//
// Invariants (check_invariants):
//   1. a cached block's parent is cached, or a root; a root has children;
//   2. no two blocks have the same key, and the index leads to each of them;
//   3. children know their parent and parents their children, the most recently used first.
// Not thread-safe: the scheduler's thread owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fastpaged/base/types.h"
#include "fastpaged/kv_cache/cache_events.h"
#include "fastpaged/kv_cache/prefix_index.h"

namespace fastpaged {

class PrefixCache {
 public:
  using Node = std::int32_t;  // a cached block's id, or a root's: -1, -2, ...

  // Children of one node that are looked at for a common beginning.
  static constexpr std::int32_t kMaxChildrenTried = 32;

  // For blocks [0, num_blocks) of block_size tokens each. hash_mask: the bits of a key's hash that are used; for tests.
  // REQUIRES: num_blocks >= 0, block_size > 0.
  PrefixCache(std::int32_t num_blocks, std::int32_t block_size, std::uint64_t hash_mask = ~std::uint64_t{0});

  [[nodiscard]] std::int32_t num_cached() const { return index_.size(); }
  [[nodiscard]] BlockId num_blocks() const { return static_cast<BlockId>(entries_.size()); }  // cached or not
  [[nodiscard]] std::uint64_t num_erased() const { return num_erased_; }                      // since the beginning
  // Changes whenever something is forgotten or moved: what was found before may not be there any more.
  [[nodiscard]] std::uint64_t generation() const { return num_erased_ + num_moved_; }
  [[nodiscard]] bool holds(BlockId block) const { return entries_[block].id != 0; }
  // Names what the block holds, now and never again for anything else; 0 for a block that is not cached.
  [[nodiscard]] std::uint64_t entry_id(BlockId block) const { return entries_[block].id; }
  // REQUIRES (all three): the block is cached.
  [[nodiscard]] bool has_child(BlockId block, auto&& is_it) const {  // one of which is_it(child)
    for (BlockId child = entries_[block].first_child; child != kNone; child = entries_[child].next) {
      if (is_it(child)) {
        return true;
      }
    }
    return false;
  }
  [[nodiscard]] Node parent(BlockId block) const { return entries_[block].parent; }
  [[nodiscard]] std::span<const TokenId> tokens(BlockId block) const;

  [[nodiscard]] const std::string& root_name(Node root) const { return roots_[root_index(root)].name; }

  [[nodiscard]] std::optional<Node> find_root(std::string_view name) const;  // nullopt: nothing is cached under it
  // The block with this key. REQUIRES: the node exists; tokens are as many as a block holds.
  [[nodiscard]] std::optional<BlockId> find(Node parent, std::span<const TokenId> tokens) const;
  // Of the node's children, at most kMaxChildrenTried, the one that begins with most of these tokens, and how many.
  struct Beginning {
    BlockId block = 0;
    std::int32_t num_tokens = 0;  // 0: none, whatever `block` says
  };
  [[nodiscard]] Beginning find_beginning(Node parent, std::span<const TokenId> tokens) const;

  // The root of that name, made if there is none: something must be added to it at once.
  [[nodiscard]] Node make_root(std::string_view name);
  // The block becomes the parent's most recently used child. REQUIRES: the node exists, the block is not cached, no
  // block has this key.
  void add(BlockId block, Node parent, std::span<const TokenId> tokens);
  // The block becomes its parent's most recently used child. REQUIRES: it is cached.
  void touch(BlockId block);
  // What `from` holds is in `to` now, under the same key, parent and children, with the same entry_id, used as
  // recently. O(children). REQUIRES: `from` is cached, `to` is not.
  void move(BlockId from, BlockId to);
  // No longer cached, and neither are its descendants, which are returned: each after its parent. REQUIRES: it is
  // cached.
  std::vector<BlockId> erase(BlockId block);
  void clear();

  // From now on all that is cached, or no longer, is told to `events`, if these are on. REQUIRES: nothing is cached;
  // `events` outlives the cache.
  void tell(CacheEvents& events) { events_ = events.on() ? &events : nullptr; }

  void check_invariants() const;

 private:
  struct Entry {
    std::uint64_t id = 0;  // 0: not cached; then nothing else counts
    std::uint64_t hash = 0;
    Node parent = 0;
    BlockId first_child = kNone;
    BlockId next = kNone, prev = kNone;  // among the parent's children
  };
  struct Root {
    std::string name;
    BlockId first_child = kNone;
  };
  static constexpr BlockId kNone = -1;

  [[nodiscard]] static std::size_t root_index(Node root) { return static_cast<std::size_t>(-1 - root); }
  [[nodiscard]] BlockId& first_child(Node node);
  [[nodiscard]] BlockId first_child(Node node) const;
  [[nodiscard]] std::uint64_t hash(Node parent, std::span<const TokenId> tokens) const;
  void link(BlockId block);
  void unlink(BlockId block);
  void erase_one(BlockId block);
  void check_children(Node node, std::int32_t& num_seen) const;

  std::size_t block_size_;
  std::uint64_t hash_mask_;
  std::uint64_t last_id_ = 0;
  std::uint64_t num_erased_ = 0;
  std::uint64_t num_moved_ = 0;
  std::vector<Entry> entries_;   // by block
  std::vector<TokenId> tokens_;  // [num_blocks, block_size]
  PrefixIndex index_;
  std::vector<Root> roots_;  // without children: not in use
  std::vector<Node> unused_roots_;
  std::map<std::string, Node, std::less<>> root_by_name_;
  CacheEvents* events_ = nullptr;  // null: nobody wants to hear of it
};

}  // namespace fastpaged
