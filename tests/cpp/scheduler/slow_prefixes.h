// The prefix cache said plainly: a list of cached blocks, each with its root and all tokens up to its last one, in the
// order in which they were used. Whether a block is free is not its business.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <ranges>
#include <string>
#include <vector>

#include "fastpaged/base/types.h"

namespace fastpaged::test {

struct SlowEntry {
  BlockId block = 0;
  std::string root;
  std::vector<TokenId> text;  // of the block and all before it
};

struct SlowMatch {
  std::vector<BlockId> blocks;
  std::optional<BlockId> partial;
  std::int64_t tokens = 0;  // in all
};

class SlowPrefixes {
 public:
  explicit SlowPrefixes(std::int64_t block_size) : block_size_(block_size) {}

  std::vector<SlowEntry> entries;  // the most recently used first

  [[nodiscard]] bool contains(BlockId block) const { return std::ranges::count(entries, block, &SlowEntry::block) > 0; }

  [[nodiscard]] std::optional<BlockId> find(const std::string& root, const std::vector<TokenId>& text) const {
    const auto same = [&](const SlowEntry& entry) { return entry.root == root && entry.text == text; };
    const auto found = std::ranges::find_if(entries, same);
    return found == entries.end() ? std::nullopt : std::optional(found->block);
  }

  void add(BlockId block, const std::string& root, const std::vector<TokenId>& text) {
    entries.insert(entries.begin(), {block, root, text});
  }

  void touch(BlockId block) {
    const auto place = std::ranges::find(entries, block, &SlowEntry::block);
    std::rotate(entries.begin(), place, place + 1);
  }

  // And whatever follows it. Returns how many blocks that are.
  std::size_t erase(BlockId block) {
    const SlowEntry gone = *std::ranges::find(entries, block, &SlowEntry::block);
    return std::erase_if(entries, [&](const SlowEntry& entry) {
      return entry.root == gone.root && common(entry.text, gone.text) == std::ssize(gone.text);
    });
  }

  // Whole blocks as long as there are any within the first `most` tokens. Then the next one, if it is there and only
  // `most` is in the way; or else, of those that come after the same text, the one that goes on longest as these tokens
  // do, of several the one used last. (The real cache looks at 32 of them: nowhere here are there as many.)
  [[nodiscard]] SlowMatch match(const std::vector<TokenId>& tokens, std::int64_t most, const std::string& root) const {
    SlowMatch match;
    const auto next = [&] {
      const std::int64_t end = match.tokens + block_size_;
      return end <= std::ssize(tokens) ? find(root, first(tokens, end)) : std::nullopt;
    };
    while (match.tokens + block_size_ <= most && next()) {
      match.blocks.push_back(*next());
      match.tokens += block_size_;
    }
    std::int64_t longest = match.tokens;
    if (next() && match.tokens < most) {
      match.partial = next();
      longest = most;
    } else {
      for (const SlowEntry& entry : entries) {
        const std::int64_t alike = std::min(common(entry.text, tokens), most);
        const bool follows = entry.root == root && std::ssize(entry.text) == match.tokens + block_size_;
        if (follows && alike > longest) {
          longest = alike;
          match.partial = entry.block;
        }
      }
    }
    match.tokens = longest;
    return match;
  }

  [[nodiscard]] static std::vector<TokenId> first(const std::vector<TokenId>& tokens, std::int64_t count) {
    return {tokens.begin(), tokens.begin() + count};
  }

 private:
  [[nodiscard]] static std::int64_t common(const std::vector<TokenId>& a, const std::vector<TokenId>& b) {
    return std::ranges::mismatch(a, b).in1 - a.begin();
  }

  std::int64_t block_size_;
};

}  // namespace fastpaged::test
