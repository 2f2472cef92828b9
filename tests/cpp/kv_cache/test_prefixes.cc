// KVCacheManager's prefixes, by example.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "fastpaged/base/check.h"
#include "fastpaged/kv_cache/kv_cache_manager.h"
#include "kv_cache/texts.h"

namespace fastpaged::test {

TEST_CASE("a text that is cached up to its end is taken over but for its last token") {
  KVCacheManager kv_cache = caching(8, 4);
  Text first(kv_cache, 1, count_from(10, 8));
  first.compute(kv_cache);
  Text second(kv_cache, 2, count_from(10, 8));
  CHECK(second.adopt(kv_cache) == 7);
  CHECK(ids(second.table) == std::vector<BlockId>{0, 2});
  CHECK(kv_cache.take_copies() == std::vector<BlockCopy>{{CopyKind::kCopyOnWrite, 1, 2, 1}});
  REQUIRE(kv_cache.reserve(second.table, 7, 1));
  kv_cache.check_writable(second.table, 7, 1);
  CHECK(kv_cache.take_copies().empty());
  second.publish(kv_cache, 8);  // now it holds what block 1 holds: the two are one again
  CHECK(ids(second.table) == std::vector<BlockId>{0, 1});
  CHECK(kv_cache.num_free_blocks() == 6);
  CHECK(kv_cache.num_partial_copies() == 1);
}

TEST_CASE("every length of a common beginning is found to the token") {
  for (std::int32_t block_size = 1; block_size <= 5; ++block_size) {
    for (std::size_t common = 0; common <= 16; ++common) {
      CAPTURE(block_size);
      CAPTURE(common);
      KVCacheManager kv_cache = caching(40, block_size);
      Text first(kv_cache, 1, count_from(10, 17));
      first.compute(kv_cache);
      const std::size_t cached = 17 / static_cast<std::size_t>(block_size) * static_cast<std::size_t>(block_size);
      Text second(kv_cache, 2, joined(count_from(10, common), count_from(100, 17)));
      CHECK(second.adopt(kv_cache) == static_cast<std::int32_t>(std::min(common, cached)));
      CHECK(second.published.num_blocks == static_cast<std::int32_t>(std::min(common, cached)) / block_size);
    }
  }
}

TEST_CASE("publishing chunk by chunk caches what publishing at once does") {
  for (std::int32_t chunk = 1; chunk <= 13; ++chunk) {
    CAPTURE(chunk);
    KVCacheManager kv_cache = caching(8, 4);
    Text text(kv_cache, 1, count_from(10, 13));
    REQUIRE(kv_cache.reserve(text.table, 0, 13));
    for (std::int32_t computed = chunk; computed <= 13; computed += chunk) {
      text.publish(kv_cache, computed);
      CHECK(text.published.num_blocks == computed / 4);
      CHECK(num_found(kv_cache, text.tokens) == computed / 4 * 4);
    }
  }
}

TEST_CASE("what is given back stays findable until room is needed: the end of a text goes before its beginning") {
  KVCacheManager kv_cache = caching(4, 2);
  const Tokens tokens = count_from(10, 6);
  {
    Text first(kv_cache, 1, tokens);
    first.compute(kv_cache);
  }
  CHECK(kv_cache.num_free_blocks() == 4);
  CHECK(kv_cache.device_pool().free_blocks() == std::vector<BlockId>{3});
  CHECK(kv_cache.device_pool().cached_free_blocks() == std::vector<BlockId>{2, 1, 0});
  BlockTable other = kv_cache.make_table(2);
  for (std::int32_t num_blocks = 1; num_blocks <= 4; ++num_blocks) {
    REQUIRE(kv_cache.reserve(other, 2 * (num_blocks - 1), 2));
    kv_cache.check_invariants();
    CHECK(num_found(kv_cache, tokens) == 2 * (4 - num_blocks));
  }
  CHECK(kv_cache.num_evicted_blocks() == 3);
}

TEST_CASE("a match tells what it takes: free blocks that are revived, and those that somebody holds") {
  KVCacheManager kv_cache = caching(8, 2);
  Text first(kv_cache, 1, count_from(10, 6));
  first.compute(kv_cache);
  first.table.truncate(1);
  const PrefixMatch match = kv_cache.match_prefix(first.tokens, 5, "");
  CHECK(match.blocks == std::vector<BlockId>{0, 1});
  CHECK(match.num_in_use == 1);
  CHECK(match.num_revived() == 1);
  CHECK(match.partial_block == 2);
  CHECK(match.num_partial_tokens == 1);
  CHECK(match.num_tokens == 5);
  CHECK(kv_cache.num_prefix_gains() == 3);
  BlockTable table = kv_cache.make_table(2);
  PublishedPrefix published;
  CHECK(kv_cache.adopt(table, match, published) == 5);
  CHECK(kv_cache.num_prefix_gains() == 4);
  CHECK(kv_cache.num_free_blocks() == 8 - 3);  // and its own copy
}

TEST_CASE("where no block is free for the copy, whole blocks are taken over alone") {
  KVCacheManager kv_cache = caching(3, 2);
  const Tokens tokens = count_from(10, 6);
  Text(kv_cache, 1, tokens).compute(kv_cache);
  Text second(kv_cache, 2, tokens);
  CHECK(second.adopt(kv_cache) == 4);  // the only block that is free is the one to be copied
  CHECK(ids(second.table) == std::vector<BlockId>{0, 1});
  CHECK(kv_cache.take_copies().empty());
  CHECK(num_found(kv_cache, tokens) == 6);
}

TEST_CASE("the block that a copy is made of is not handed out for the copy") {
  KVCacheManager kv_cache = caching(4, 2);
  const Tokens tokens = count_from(10, 4);
  Text(kv_cache, 1, tokens).compute(kv_cache);
  Text other(kv_cache, 3, count_from(90, 2));
  other.compute(kv_cache);
  BlockTable rest = kv_cache.make_table(4);
  REQUIRE(kv_cache.reserve(rest, 0, 2));
  REQUIRE(kv_cache.device_pool().cached_free_blocks() == std::vector<BlockId>{1, 0});  // the source would be next
  Text second(kv_cache, 2, {10, 50, 50});
  CHECK(second.adopt(kv_cache) == 1);
  CHECK(kv_cache.take_copies() == std::vector<BlockCopy>{{CopyKind::kCopyOnWrite, 0, 1, 1}});
}

TEST_CASE("two texts computed side by side share their common blocks once both are published") {
  KVCacheManager kv_cache = caching(8, 2);
  Text first(kv_cache, 1, count_from(10, 5));
  Text second(kv_cache, 2, joined(count_from(10, 4), {90, 91}));
  REQUIRE(kv_cache.reserve(first.table, 0, 5));
  REQUIRE(kv_cache.reserve(second.table, 0, 6));
  CHECK(kv_cache.num_free_blocks() == 2);
  first.publish(kv_cache, 5);
  const std::uint64_t version = second.table.version();
  second.publish(kv_cache, 6);
  CHECK(second.table.version() != version);
  CHECK(ids(first.table) == std::vector<BlockId>{0, 1, 2});
  CHECK(ids(second.table) == std::vector<BlockId>{0, 1, 5});
  CHECK(kv_cache.num_free_blocks() == 4);
}

TEST_CASE("texts of different roots share nothing") {
  KVCacheManager kv_cache = caching(8, 2);
  Text first(kv_cache, 1, count_from(10, 4), "one");
  first.compute(kv_cache);
  Text second(kv_cache, 2, count_from(10, 4), "two");
  CHECK(second.adopt(kv_cache) == 0);
  second.compute(kv_cache);
  CHECK(ids(second.table) == std::vector<BlockId>{2, 3});
  CHECK(num_found(kv_cache, first.tokens, "one") == 4);
  CHECK(num_found(kv_cache, first.tokens, "two") == 4);
  CHECK(num_found(kv_cache, first.tokens) == 0);
}

TEST_CASE("writing into a cached block is an immediate error; who holds it alone may, for then it is forgotten") {
  KVCacheManager kv_cache = caching(4, 2);
  Text text(kv_cache, 7, count_from(10, 4));
  text.compute(kv_cache);
  CHECK_THROWS_WITH_AS(kv_cache.check_writable(text.table, 2, 1), doctest::Contains("which is cached"), InvariantError);
  CHECK(kv_cache.missing_blocks(text.table, 2, 1) == 0);
  REQUIRE(kv_cache.reserve(text.table, 2, 1));
  kv_cache.check_writable(text.table, 2, 1);
  kv_cache.check_invariants();
  CHECK(num_found(kv_cache, text.tokens) == 2);
  CHECK(kv_cache.take_copies().empty());
}

TEST_CASE("a branch that writes into a cached block which another one holds copies it") {
  KVCacheManager kv_cache = caching(4, 2);
  Text text(kv_cache, 7, count_from(10, 4));
  text.compute(kv_cache);
  BlockTable branch = text.table.fork(8, 2);
  REQUIRE(kv_cache.reserve(branch, 3, 1));
  kv_cache.check_writable(branch, 3, 1);
  CHECK(ids(branch) == std::vector<BlockId>{0, 2});
  CHECK(num_found(kv_cache, text.tokens) == 4);
}

TEST_CASE("a block whose beginning is evicted cannot be found any more, though somebody holds it") {
  KVCacheManager kv_cache = caching(4, 2);
  Text first(kv_cache, 1, count_from(10, 2));
  first.compute(kv_cache);
  Text second(kv_cache, 2, count_from(10, 4));
  REQUIRE(kv_cache.reserve(second.table, 0, 4));
  Text branch(kv_cache, 3, second.tokens);
  branch.table = second.table.fork(3, 2);
  second.publish(kv_cache, 4);
  CHECK(ids(second.table) == std::vector<BlockId>{0, 2});
  CHECK(ids(branch.table) == std::vector<BlockId>{1, 2});  // not published yet: a beginning of its own
  first.table.clear();
  second.table.clear();
  BlockTable other = kv_cache.make_table(4);
  REQUIRE(kv_cache.reserve(other, 0, 4));
  kv_cache.check_invariants();
  CHECK(kv_cache.num_evicted_blocks() == 1);
  CHECK(kv_cache.prefix_cache().num_cached() == 0);
  branch.publish(kv_cache, 4);
  CHECK(ids(branch.table) == std::vector<BlockId>{1, 2});
  CHECK(num_found(kv_cache, branch.tokens) == 4);
}

TEST_CASE("a match from before something was forgotten is not taken") {
  KVCacheManager kv_cache = caching(3, 2);
  const Tokens tokens = count_from(10, 4);
  Text(kv_cache, 1, tokens).compute(kv_cache);
  const PrefixMatch match = kv_cache.match_prefix(tokens, 3, "");
  BlockTable other = kv_cache.make_table(2);
  REQUIRE(kv_cache.reserve(other, 0, 4));
  BlockTable table = kv_cache.make_table(3);
  PublishedPrefix published;
  CHECK_THROWS_WITH_AS(kv_cache.adopt(table, match, published), doctest::Contains("a match from before"),
                       InvariantError);
  CHECK(table.size() == 0);
}

TEST_CASE("after a reset nothing is found, and what was computed before it is never published") {
  KVCacheManager kv_cache = caching(8, 2);
  Text running(kv_cache, 1, count_from(10, 6));
  REQUIRE(kv_cache.reserve(running.table, 0, 6));
  running.publish(kv_cache, 4);
  Text begun(kv_cache, 2, count_from(50, 4));
  CHECK(begun.adopt(kv_cache) == 0);
  REQUIRE(kv_cache.reserve(begun.table, 0, 4));
  { Text(kv_cache, 3, count_from(70, 4)).compute(kv_cache); }
  kv_cache.reset_prefix_cache();
  kv_cache.check_invariants();
  CHECK(kv_cache.prefix_cache().num_cached() == 0);
  CHECK(kv_cache.device_pool().cached_free_blocks().empty());
  CHECK(running.table.size() == 3);  // and goes on
  running.publish(kv_cache, 6);
  begun.publish(kv_cache, 4);
  CHECK(num_found(kv_cache, running.tokens) == 0);
  CHECK(num_found(kv_cache, begun.tokens) == 0);
  running.table.clear();
  running.published = {};
  running.compute(kv_cache);
  CHECK(num_found(kv_cache, running.tokens) == 6);
}

TEST_CASE("what one table alone holds can be forgotten, and all that comes after it; what others hold stays") {
  KVCacheManager kv_cache = caching(8, 2);
  Text shared(kv_cache, 1, count_from(100, 2));
  shared.compute(kv_cache);
  {
    Text longer(kv_cache, 2, count_from(100, 8));
    longer.adopt(kv_cache);
    longer.compute(kv_cache);
    kv_cache.forget_own(shared.table);  // the longer one holds its block, too
    CHECK(num_found(kv_cache, longer.tokens) == 8);
  }
  Text doubtful(kv_cache, 3, joined(count_from(100, 4), {7, 7}));
  CHECK(doubtful.adopt(kv_cache) == 4);
  const std::vector<BlockId> free = kv_cache.device_pool().cached_free_blocks();
  REQUIRE(free.size() == 2);
  kv_cache.forget_own(doubtful.table);
  kv_cache.check_invariants();
  CHECK(num_found(kv_cache, count_from(100, 8)) == 2);
  CHECK(doubtful.table.size() == 2);
  const std::vector<BlockId> empty = kv_cache.device_pool().free_blocks();
  CHECK(std::vector(empty.begin(), empty.begin() + 2) == free);
  kv_cache.forget_own(doubtful.table);  // nothing is left to forget
  CHECK(num_found(kv_cache, count_from(100, 8)) == 2);
}

TEST_CASE("what was swapped out stays findable, and what comes back is published anew, or becomes one with it") {
  KVCacheManager kv_cache = caching(6, 2, 4);
  Text text(kv_cache, 1, count_from(10, 5));
  text.compute(kv_cache);
  BlockTable* const tables[] = {&text.table};
  REQUIRE(kv_cache.swap_out(tables));
  kv_cache.check_invariants();
  CHECK(num_found(kv_cache, text.tokens) == 4);
  REQUIRE(kv_cache.swap_in(tables));
  CHECK(ids(text.table) == std::vector<BlockId>{2, 3, 4});
  text.publish(kv_cache, 5);
  CHECK(ids(text.table) == std::vector<BlockId>{0, 1, 4});
  REQUIRE(kv_cache.swap_out(tables));
  {
    BlockTable other = kv_cache.make_table(2);
    REQUIRE(kv_cache.reserve(other, 0, 12));
  }
  CHECK(num_found(kv_cache, text.tokens) == 0);
  REQUIRE(kv_cache.swap_in(tables));
  text.publish(kv_cache, 5);
  CHECK(num_found(kv_cache, text.tokens) == 4);
}

TEST_CASE("without prefix caching nothing is published and nothing found") {
  KVCacheManager kv_cache(8, 2);
  Text text(kv_cache, 1, count_from(10, 4));
  text.compute(kv_cache);
  CHECK(num_found(kv_cache, text.tokens) == 0);
  CHECK(kv_cache.num_prefix_gains() == 0);
  text.table.clear();
  CHECK(kv_cache.device_pool().free_blocks() == std::vector<BlockId>{0, 1, 2, 3, 4, 5, 6, 7});
  kv_cache.reset_prefix_cache();
  kv_cache.check_invariants();
}

}  // namespace fastpaged::test
