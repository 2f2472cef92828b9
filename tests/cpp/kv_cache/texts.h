// What examples of prefixes are written with: texts with a table each.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "fastpaged/kv_cache/kv_cache_manager.h"

namespace fastpaged::test {

using Tokens = std::vector<TokenId>;

inline std::vector<BlockId> ids(const BlockTable& table) {
  return {table.blocks().begin(), table.blocks().end()};
}

// first, first + 1, ...
inline Tokens count_from(TokenId first, std::size_t num_tokens) {
  Tokens tokens(num_tokens);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline Tokens joined(Tokens tokens, const Tokens& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

struct Text {
  Tokens tokens;
  BlockTable table;
  PublishedPrefix published;
  std::string root;

  Text(KVCacheManager& kv_cache, SequenceId owner, Tokens its_tokens, std::string its_root = "")
      : tokens(std::move(its_tokens)), table(kv_cache.make_table(owner)), root(std::move(its_root)) {}
  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(tokens.size()); }
  void compute(KVCacheManager& kv_cache) {
    REQUIRE(kv_cache.reserve(table, 0, size()));
    publish(kv_cache, size());
  }
  void publish(KVCacheManager& kv_cache, std::int32_t num_computed) {
    kv_cache.publish(table, tokens, num_computed, root, published);
    kv_cache.check_invariants();
  }
  std::int32_t adopt(KVCacheManager& kv_cache) {
    const PrefixMatch match = kv_cache.match_prefix(tokens, size() - 1, root);
    const std::int32_t num_tokens = kv_cache.adopt(table, match, published);
    kv_cache.check_invariants();
    return num_tokens;
  }
};

inline std::int32_t num_found(const KVCacheManager& kv_cache, const Tokens& tokens, const std::string& root = "") {
  return kv_cache.match_prefix(tokens, static_cast<std::int32_t>(tokens.size()), root).num_tokens;
}

inline KVCacheManager caching(std::int32_t num_blocks, std::int32_t block_size, std::int32_t num_host_blocks = 0) {
  return {num_blocks, block_size, num_host_blocks, {.enabled = true}};
}

}  // namespace fastpaged::test
