// History: what K and V of a token are a function of: the tokens up to it, and the root that they may be found under.
// Whoever computes the same tokens under the same root writes the same; under another root, for nothing to be found
// there by mistake, it is something else.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "fastpaged/base/types.h"

namespace fastpaged::test {

using History = std::uint64_t;

inline std::uint64_t mixed(std::uint64_t bits) {
  bits = (bits ^ (bits >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  bits = (bits ^ (bits >> 27U)) * 0x94D049BB133111EBULL;
  return bits ^ (bits >> 31U);
}

// Of no token yet.
inline History beginning(std::string_view root) {
  History history = 0x9E3779B97F4A7C15ULL;
  for (const char letter : root) {
    history = mixed(history + static_cast<std::uint64_t>(static_cast<unsigned char>(letter)) + 1);
  }
  return history;
}

inline History with(History history, TokenId token) {
  return mixed(mixed(history) ^ static_cast<std::uint64_t>(token + 1));
}

// Of each of these tokens, the first ones under this root.
inline std::vector<History> histories(std::span<const TokenId> tokens, std::string_view root) {
  std::vector<History> all;
  History history = beginning(root);
  for (const TokenId token : tokens) {
    all.push_back(history = with(history, token));
  }
  return all;
}

}  // namespace fastpaged::test
