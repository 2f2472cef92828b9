// Names for what cached blocks hold: a hash of a block's tokens, of all before them, and of the root (a tenant's salt)
// they hang on. The same content has the same name in every run, on every machine and in both tiers, which ids have
// not. For those who look from outside: nothing in here is decided by it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "fastpaged/base/types.h"

namespace fastpaged {

namespace content_hash_detail {

// A bijection of `hash` for each word, so that a long text loses nothing on the way.
constexpr std::uint64_t stir(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
  return hash ^ (hash >> 29U);
}

}  // namespace content_hash_detail

// What the first block under this root has for a parent.
[[nodiscard]] constexpr std::uint64_t root_hash(std::string_view name) {
  std::uint64_t hash = content_hash_detail::stir(0x6B765F726F6F7473ULL, name.size());
  for (const char byte : name) {
    hash = content_hash_detail::stir(hash, static_cast<unsigned char>(byte));
  }
  return hash;
}

[[nodiscard]] constexpr std::uint64_t block_hash(std::uint64_t parent, std::span<const TokenId> tokens) {
  std::uint64_t hash = content_hash_detail::stir(parent, tokens.size());
  for (const TokenId token : tokens) {
    hash = content_hash_detail::stir(hash, static_cast<std::uint32_t>(token));
  }
  return hash;
}

}  // namespace fastpaged
