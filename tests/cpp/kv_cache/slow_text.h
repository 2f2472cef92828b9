// SlowText: what a cached block holds is the whole text from the beginning up to its end.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
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

struct SlowPlace {
  bool on_host = false;
  BlockId block = 0;
  auto operator<=>(const SlowPlace&) const = default;
};

struct SlowEntry {
  SlowText text;
  std::int64_t last_used = 0;
  std::int64_t birth = 0;  // of it: the same wherever it is moved
};

}  // namespace fastpaged::test
