// SlowPool: BlockPool and the forest of a PrefixCache said plainly. Who holds a block is a set of owners; what a cached
// block holds is the whole text from the beginning up to its end, and to find it all of them are compared.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fastpaged/base/types.h"

namespace fastpaged::test {

struct SlowText {
  std::string root;
  std::vector<TokenId> tokens;

  [[nodiscard]] std::size_t size() const { return tokens.size(); }
  [[nodiscard]] SlowText first(std::size_t num_tokens) const {
    return {root, {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(num_tokens)}};
  }
  [[nodiscard]] bool begins_with(const SlowText& other) const {
    return root == other.root && other.size() <= size() &&
           std::equal(other.tokens.begin(), other.tokens.end(), tokens.begin());
  }
  bool operator==(const SlowText&) const = default;
};

struct SlowEntry {
  SlowText text;
  std::int64_t last_used = 0;
};

struct SlowPool {
  SlowPool(std::string its_name, std::int32_t num_blocks, std::int32_t block_size)
      : name(std::move(its_name)), size(num_blocks), tokens_per_block(static_cast<std::size_t>(block_size)) {
    for (BlockId block = 0; block < num_blocks; ++block) {
      free.push_back(block);
    }
  }

  [[nodiscard]] std::int32_t num_free() const { return static_cast<std::int32_t>(free.size()); }
  [[nodiscard]] bool shared(BlockId block) const { return holders.at(block).size() > 1; }

  BlockId take(SequenceId owner) {
    const BlockId block = free.at(0);
    free.erase(free.begin());
    share(block, owner);
    if (cached.contains(block)) {
      forget(block);
      ++num_evicted;
    }
    return block;
  }
  void share(BlockId block, SequenceId owner) {
    holders[block].insert(owner);
    last_owner[block] = owner;
  }
  void give(BlockId block, SequenceId owner) {
    last_owner[block] = owner;
    holders.at(block).erase(owner);
    if (holders.at(block).empty()) {
      holders.erase(block);
      free.insert(cached.contains(block) ? free.end() : free.begin(), block);
    }
  }

  // The cached block whose text, from the beginning on, is this one.
  [[nodiscard]] std::optional<BlockId> find(const SlowText& text) const {
    for (const auto& [block, entry] : cached) {
      if (entry.text == text) {
        return block;
      }
    }
    return std::nullopt;
  }
  void cache(BlockId block, const SlowText& text) { cached[block] = {text, ++now}; }
  void use(BlockId block) { cached.at(block).last_used = ++now; }
  void take_cached(BlockId block, SequenceId owner) {
    std::erase(free, block);
    share(block, owner);
  }
  // The cached blocks that go on from this text by as many tokens as a block has, the most recently used first.
  [[nodiscard]] std::vector<BlockId> children(const SlowText& text) const {
    std::vector<BlockId> blocks;
    for (const auto& [block, entry] : cached) {
      if (entry.text.begins_with(text) && entry.text.size() == text.size() + tokens_per_block) {
        blocks.push_back(block);
      }
    }
    std::ranges::sort(blocks, std::greater(), [&](BlockId block) { return cached.at(block).last_used; });
    return blocks;
  }
  // What goes on from it cannot be found without it: it is forgotten too, the nearest first.
  void forget(BlockId block) {
    std::vector<BlockId> gone = {block};
    for (std::size_t i = 0; i < gone.size(); ++i) {
      for (const BlockId child : children(cached.at(gone[i]).text)) {
        gone.push_back(child);
      }
    }
    for (const BlockId each : gone) {
      cached.erase(each);
      put_first(each);
    }
  }
  // A free block that has come to hold nothing is the next to be handed out.
  void put_first(BlockId block) {
    if (std::erase(free, block) > 0) {
      free.insert(free.begin(), block);
    }
  }
  // Everything, and what is free stays in its order.
  void forget_all() {
    std::stable_partition(free.begin(), free.end(), [&](BlockId block) { return cached.contains(block); });
    cached.clear();
  }

  // What the pool must say to somebody who uses a block that nobody holds.
  [[nodiscard]] std::string refusal(BlockId block, SequenceId owner, const std::string& operation) const {
    if (block < 0 || block >= size) {
      return "block " + std::to_string(block) + " is unknown: the " + name + " pool has " + std::to_string(size) +
             " blocks";
    }
    const auto last = last_owner.find(block);
    return "sequence " + std::to_string(owner) + " cannot " + operation + " block " + std::to_string(block) +
           " of the " + name + " pool: it is free, " +
           (last == last_owner.end() ? "never allocated"
                                     : "last given back by sequence " + std::to_string(last->second));
  }

  std::string name;
  std::int32_t size;
  std::vector<BlockId> free;                        // the next to be handed out first
  std::map<BlockId, std::set<SequenceId>> holders;  // of the blocks that are not free
  std::map<BlockId, SequenceId> last_owner;
  std::map<BlockId, SlowEntry> cached;
  std::size_t tokens_per_block = 1;
  std::int64_t now = 0;
  std::uint64_t num_evicted = 0;
};

}  // namespace fastpaged::test
