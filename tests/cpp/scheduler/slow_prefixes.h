// The prefix cache said plainly: a list of cached blocks of both tiers, each with its root and all tokens up to its
// last one. Whether a block is free is not its business.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <ranges>
#include <string>
#include <vector>

#include "fastpaged/base/types.h"
#include "kv_cache/slow_text.h"

namespace fastpaged::test {

struct CachedText {
  SlowPlace place;
  std::string root;
  std::vector<TokenId> text;   // of the block and all before it
  std::int64_t birth = 0;      // of this entry: the same wherever it is moved
  std::int64_t last_used = 0;  // when somebody took it, or published the same
};

struct SlowMatch {
  std::vector<BlockId> blocks;
  std::vector<BlockId> host_blocks;    // that go on from there
  std::optional<SlowPlace> beginning;  // a block that goes on longest as these tokens do: it is copied
  std::int64_t tokens = 0;             // in all

  [[nodiscard]] std::int64_t num_blocks() const { return std::ssize(blocks) + std::ssize(host_blocks); }
};

class SlowPrefixes {
 public:
  explicit SlowPrefixes(std::int64_t block_size) : block_size_(block_size) {}

  std::vector<CachedText> entries;

  [[nodiscard]] bool contains(SlowPlace place) const {
    return std::ranges::count(entries, place, &CachedText::place) > 0;
  }
  [[nodiscard]] const CachedText& at(SlowPlace place) const {
    return *std::ranges::find(entries, place, &CachedText::place);
  }

  [[nodiscard]] std::optional<SlowPlace> find(const std::string& root, const std::vector<TokenId>& text) const {
    const auto same = [&](const CachedText& entry) { return entry.root == root && entry.text == text; };
    const auto found = std::ranges::find_if(entries, same);
    return found == entries.end() ? std::nullopt : std::optional(found->place);
  }

  void add(BlockId block, const std::string& root, const std::vector<TokenId>& text) {
    ++now_;
    entries.push_back({{false, block}, root, text, now_, now_});
  }
  void use(SlowPlace place) { std::ranges::find(entries, place, &CachedText::place)->last_used = ++now_; }
  void move(SlowPlace from, SlowPlace to) { std::ranges::find(entries, from, &CachedText::place)->place = to; }
  void erase(SlowPlace place) {
    std::erase_if(entries, [&](const CachedText& entry) { return entry.place == place; });
  }

  // This cached block, and those that come after it.
  [[nodiscard]] std::vector<SlowPlace> from(SlowPlace place) const {
    const CachedText& first = at(place);
    std::vector<SlowPlace> places;
    for (const CachedText& entry : entries) {
      if (entry.root == first.root && common(entry.text, first.text) == std::ssize(first.text)) {
        places.push_back(entry.place);
      }
    }
    return places;
  }

  // Whether the block before this one, if there is one, is on the device.
  [[nodiscard]] bool comes_after_device_blocks(SlowPlace place) const {
    const CachedText& entry = at(place);
    const std::int64_t before = std::ssize(entry.text) - block_size_;
    const std::optional<SlowPlace> parent = find(entry.root, first(entry.text, before));
    return before == 0 || (parent && !parent->on_host);
  }

  // Whole blocks as long as there are any within the first `most` tokens. Then the next one, if it is there and only
  // `most` is in the way; or else, of those that come after the same text, the one that goes on longest as these tokens
  // do, of several the one used last. (The real cache looks at 32, and here are never as many.)
  [[nodiscard]] SlowMatch match(const std::vector<TokenId>& tokens, std::int64_t most, const std::string& root) const {
    SlowMatch match;
    const auto next = [&] {
      const std::int64_t end = match.tokens + block_size_;
      return end <= std::ssize(tokens) ? find(root, first(tokens, end)) : std::nullopt;
    };
    while (match.tokens + block_size_ <= most && next()) {
      (next()->on_host ? match.host_blocks : match.blocks).push_back(next()->block);
      match.tokens += block_size_;
    }
    const std::int64_t whole = match.tokens;
    if (next() && whole < most) {
      match.beginning = next();
      match.tokens = most;
      return match;
    }
    std::vector<CachedText> children;
    std::ranges::copy_if(entries, std::back_inserter(children), [&](const CachedText& entry) {
      return entry.root == root && std::ssize(entry.text) == whole + block_size_;
    });
    std::ranges::sort(children, std::greater(), &CachedText::last_used);
    for (const CachedText& child : children) {
      const std::int64_t alike = std::min(common(child.text, tokens), most);
      if (alike > match.tokens) {
        match.beginning = child.place;
        match.tokens = alike;
      }
    }
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
  std::int64_t now_ = 0;
};

}  // namespace fastpaged::test
