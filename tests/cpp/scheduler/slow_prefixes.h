// The prefix cache said plainly: a list of cached blocks, each with its root and all tokens up to its last one. Whether
// a block is free is not its business.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <ranges>
#include <string>
#include <vector>

#include "fastpaged/base/types.h"

namespace fastpaged::test {

struct CachedText {
  BlockId block = 0;
  std::string root;
  std::vector<TokenId> text;  // of the block and all before it
};

struct SlowMatch {
  std::vector<BlockId> blocks;
  std::vector<BlockId> beginnings;  // blocks of which as much goes on as these tokens do: one of them is copied
  std::int64_t tokens = 0;          // in all
};

class SlowPrefixes {
 public:
  explicit SlowPrefixes(std::int64_t block_size) : block_size_(block_size) {}

  std::vector<CachedText> entries;

  [[nodiscard]] bool contains(BlockId block) const {
    return std::ranges::count(entries, block, &CachedText::block) > 0;
  }

  [[nodiscard]] std::optional<BlockId> find(const std::string& root, const std::vector<TokenId>& text) const {
    const auto same = [&](const CachedText& entry) { return entry.root == root && entry.text == text; };
    const auto found = std::ranges::find_if(entries, same);
    return found == entries.end() ? std::nullopt : std::optional(found->block);
  }

  void erase(BlockId block) {
    std::erase_if(entries, [&](const CachedText& entry) { return entry.block == block; });
  }

  // This cached block, and those that come after it.
  [[nodiscard]] std::vector<BlockId> from(BlockId block) const {
    const CachedText& first = *std::ranges::find(entries, block, &CachedText::block);
    std::vector<BlockId> blocks;
    for (const CachedText& entry : entries) {
      if (entry.root == first.root && common(entry.text, first.text) == std::ssize(first.text)) {
        blocks.push_back(entry.block);
      }
    }
    return blocks;
  }

  // Whether another cached block comes after this one.
  [[nodiscard]] bool goes_on(BlockId block) const { return from(block).size() > 1; }

  // Whole blocks as long as there are any within the first `most` tokens. Then the next one, if it is there and only
  // `most` is in the way; or else, of those that come after the same text, any of those that go on longest as these
  // tokens do. (Which of them the real cache takes is for its own tests. It looks at 32, and here are never as many.)
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
      match.beginnings = {*next()};
      longest = most;
    } else {
      for (const CachedText& entry : entries) {
        const std::int64_t alike = std::min(common(entry.text, tokens), most);
        if (entry.root != root || std::ssize(entry.text) != match.tokens + block_size_ || alike <= match.tokens) {
          continue;
        }
        if (alike > longest) {
          longest = alike;
          match.beginnings.clear();
        }
        if (alike == longest) {
          match.beginnings.push_back(entry.block);
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
