// The host pool as the second tier of the prefix cache, by example.
#include <doctest/doctest.h>

#include <vector>

#include "fastpaged/base/check.h"
#include "fastpaged/kv_cache/kv_cache_manager.h"
#include "kv_cache/texts.h"

namespace fastpaged::test {
namespace {

using Copies = std::vector<BlockCopy>;
using Blocks = std::vector<BlockId>;

KVCacheManager tiered(std::int32_t num_blocks, std::int32_t block_size, std::int32_t num_host_blocks) {
  return {num_blocks, block_size, num_host_blocks, {.enabled = true, .host_tier = true}};
}

// Computed, cached and given back.
void warm(KVCacheManager& kv_cache, const Tokens& tokens) {
  Text text(kv_cache, 100, tokens);
  text.compute(kv_cache);
}

// Takes all blocks of the device, and gives them back: nothing is cached there any more.
void flood(KVCacheManager& kv_cache) {
  BlockTable table = kv_cache.make_table(101);
  REQUIRE(table.grow_to(kv_cache.num_blocks()));
  kv_cache.check_invariants();
}

}  // namespace

TEST_CASE("what the device evicts is copied out, the end of a text before its beginning, and found on the host") {
  KVCacheManager kv_cache = tiered(3, 2, 4);
  warm(kv_cache, count_from(10, 6));
  flood(kv_cache);
  CHECK(kv_cache.take_copies() ==
        Copies{{CopyKind::kSwapOut, 2, 0, 1}, {CopyKind::kSwapOut, 1, 1, 1}, {CopyKind::kSwapOut, 0, 2, 1}});
  const PrefixMatch match = kv_cache.match_prefix(count_from(10, 6), 5, "");
  CHECK(match.blocks.empty());
  CHECK(match.host_blocks == Blocks{2, 1});
  CHECK(match.partial_on_host);
  CHECK(match.partial_block == 0);
  CHECK(match.num_tokens == 5);
  CHECK(match.num_in_use == 0);
  CHECK(match.num_device_tokens(2) == 0);
  CHECK(kv_cache.host_pool().cached_free_blocks() == Blocks{0, 1, 2});
  CHECK(kv_cache.host_pool().free_blocks() == Blocks{3});
  CHECK(kv_cache.num_demoted_blocks() == 3);
  CHECK(kv_cache.num_evicted_blocks() == 3);
}

TEST_CASE("who takes it has it copied in: it is the device's again, and its host block free for what makes way") {
  KVCacheManager kv_cache = tiered(3, 2, 2);
  warm(kv_cache, count_from(10, 4));
  warm(kv_cache, count_from(50, 6));  // the three blocks of the device; the other text's go out
  static_cast<void>(kv_cache.take_copies());
  Text text(kv_cache, 1, count_from(10, 5));
  CHECK(text.adopt(kv_cache) == 4);
  // For the first block that makes way there is no room yet; the second one goes to where the first to come in lay.
  CHECK(kv_cache.take_copies() ==
        Copies{{CopyKind::kSwapIn, 1, 0, 1}, {CopyKind::kSwapOut, 1, 1, 1}, {CopyKind::kSwapIn, 0, 1, 1}});
  CHECK(ids(text.table) == Blocks{0, 1});
  CHECK(kv_cache.match_prefix(text.tokens, 4, "").num_in_use == 2);
}

TEST_CASE("the beginning of a host block is copied in as a whole, and the host keeps it") {
  KVCacheManager kv_cache = tiered(2, 4, 2);
  warm(kv_cache, count_from(10, 4));
  flood(kv_cache);
  static_cast<void>(kv_cache.take_copies());
  Text text(kv_cache, 1, joined(count_from(10, 3), {99, 98}));
  CHECK(text.adopt(kv_cache) == 3);
  CHECK(kv_cache.take_copies() == Copies{{CopyKind::kSwapIn, 0, text.table.blocks()[0], 1}});
  kv_cache.check_writable(text.table, 3, 1);
  CHECK(num_found(kv_cache, count_from(10, 4)) == 4);
  CHECK(kv_cache.num_promoted_blocks() == 1);
  CHECK(kv_cache.num_partial_copies() == 1);
}

TEST_CASE("whole blocks of the host are copied in as far as there is room") {
  KVCacheManager kv_cache = tiered(3, 2, 3);
  warm(kv_cache, count_from(10, 6));
  flood(kv_cache);
  BlockTable other = kv_cache.make_table(2);
  REQUIRE(kv_cache.reserve(other, 0, 4));
  Text text(kv_cache, 1, count_from(10, 6));
  CHECK(text.adopt(kv_cache) == 2);
  CHECK(text.table.size() == 1);
  CHECK(text.published.num_blocks == 1);
  CHECK(num_found(kv_cache, text.tokens) == 6);
}

TEST_CASE("the host gives up what nobody has used for longest, for what is evicted and for what is swapped out") {
  KVCacheManager kv_cache = tiered(2, 2, 2);
  for (const TokenId first : {10, 20, 30}) {
    warm(kv_cache, count_from(first, 4));
  }
  CHECK(num_found(kv_cache, count_from(10, 4)) == 0);
  CHECK(num_found(kv_cache, count_from(20, 4)) == 4);
  CHECK(num_found(kv_cache, count_from(30, 4)) == 4);
  CHECK(kv_cache.num_host_evicted_blocks() == 2);
  Text text(kv_cache, 1, count_from(40, 4));
  REQUIRE(kv_cache.reserve(text.table, 0, 4));
  BlockTable* const tables[] = {&text.table};
  REQUIRE(kv_cache.swap_out(tables));
  kv_cache.check_invariants();
  CHECK(num_found(kv_cache, count_from(30, 4)) == 0);
  CHECK(kv_cache.host_pool().num_free() == 0);
  CHECK_FALSE(kv_cache.host_pool().is_cached(0));
}

TEST_CASE("what is swapped out and stays cached is not copied in, nor a second time out") {
  KVCacheManager kv_cache = tiered(4, 2, 6);
  Text text(kv_cache, 1, count_from(10, 5));
  text.compute(kv_cache);
  BlockTable* const tables[] = {&text.table};
  REQUIRE(kv_cache.swap_out(tables));
  CHECK(kv_cache.take_copies() == Copies{{CopyKind::kSwapOut, 0, 0, 3}});
  CHECK(kv_cache.missing_to_swap_in(tables) == 3);  // all is free
  Text other(kv_cache, 2, count_from(10, 5));
  CHECK(other.adopt(kv_cache) == 4);
  CHECK(kv_cache.missing_to_swap_in(tables) == 1);
  BlockTable* const others[] = {&other.table};
  REQUIRE(kv_cache.swap_out(others));  // shares the host's blocks
  CHECK(kv_cache.take_copies().empty());
  CHECK(ids(other.table) == Blocks{0, 1});
  REQUIRE(kv_cache.swap_in(tables));
  CHECK(ids(text.table) == Blocks{0, 1, 2});
  CHECK(kv_cache.take_copies() == Copies{{CopyKind::kSwapIn, 2, 2, 1}});
  kv_cache.check_invariants();
}

TEST_CASE("when the device evicts what a swapped table has, it is cached there, and comes back with the table") {
  KVCacheManager kv_cache = tiered(3, 2, 4);
  Text text(kv_cache, 1, count_from(10, 6));
  text.compute(kv_cache);
  BlockTable* const tables[] = {&text.table};
  REQUIRE(kv_cache.swap_out(tables));
  static_cast<void>(kv_cache.take_copies());
  flood(kv_cache);
  CHECK(kv_cache.take_copies().empty());
  CHECK(num_found(kv_cache, text.tokens) == 6);
  CHECK(kv_cache.host_pool().ref_count(0) == 1);
  CHECK(kv_cache.num_demoted_blocks() == 0);
  REQUIRE(kv_cache.swap_in(tables));
  kv_cache.check_invariants();
  CHECK(kv_cache.match_prefix(text.tokens, 6, "").blocks == ids(text.table));
  const std::uint64_t gains = kv_cache.num_prefix_gains();
  text.publish(kv_cache, 6);
  CHECK(kv_cache.num_prefix_gains() == gains);  // it was published all the time
  CHECK(kv_cache.host_pool().free_blocks().size() == 4);
}

TEST_CASE("who computes what lies on the host takes it over without a copy") {
  KVCacheManager kv_cache = tiered(3, 2, 3);
  warm(kv_cache, count_from(10, 4));
  flood(kv_cache);
  static_cast<void>(kv_cache.take_copies());
  Text text(kv_cache, 1, count_from(10, 4));
  text.compute(kv_cache);  // as one would that takes nothing from the cache
  CHECK(kv_cache.match_prefix(text.tokens, 4, "").blocks == ids(text.table));
  CHECK(kv_cache.host_pool().free_blocks().size() == 3);
  CHECK(kv_cache.take_copies().empty());
}

TEST_CASE("what lost copies wrote is forgotten in both tiers, with all that comes after it, and nothing else") {
  KVCacheManager kv_cache = tiered(3, 2, 4);
  warm(kv_cache, count_from(10, 6));
  {
    BlockTable table = kv_cache.make_table(1);
    REQUIRE(table.grow_to(1));  // the text's end goes out
  }
  static_cast<void>(kv_cache.take_copies());
  {
    BlockTable table = kv_cache.make_table(1);
    REQUIRE(table.grow_to(2));  // and its middle
  }
  const Copies lost = kv_cache.take_copies();
  CHECK(lost == Copies{{CopyKind::kSwapOut, 1, 1, 1}});
  CHECK(num_found(kv_cache, count_from(10, 6)) == 6);
  kv_cache.forget_written(lost);
  kv_cache.check_invariants();
  CHECK(num_found(kv_cache, count_from(10, 6)) == 2);
  CHECK(kv_cache.host_pool().free_blocks().size() == 4);
  Text text(kv_cache, 2, count_from(10, 3));
  CHECK(text.adopt(kv_cache) == 2);
}

TEST_CASE("nothing is copied out that is cheaper to compute again") {
  KVCacheManager kv_cache = tiered(2, 2, 4);
  kv_cache.copy_evicted(false);
  warm(kv_cache, count_from(10, 4));
  flood(kv_cache);
  CHECK(kv_cache.take_copies().empty());
  CHECK(num_found(kv_cache, count_from(10, 4)) == 0);
}

TEST_CASE("without the tier, or without a host pool, what the device evicts is gone") {
  KVCacheManager without = caching(2, 2, 4);
  KVCacheManager none = tiered(2, 2, 0);
  for (KVCacheManager* kv_cache : {&without, &none}) {
    warm(*kv_cache, count_from(10, 4));
    flood(*kv_cache);
    CHECK_FALSE(kv_cache->has_host_tier());
    CHECK(num_found(*kv_cache, count_from(10, 4)) == 0);
    CHECK(kv_cache->copies().num_blocks() == 0);
  }
}

TEST_CASE("a match from before something moved is not taken, and a reset forgets both tiers") {
  KVCacheManager kv_cache = tiered(3, 2, 2);
  warm(kv_cache, count_from(10, 6));
  const PrefixMatch match = kv_cache.match_prefix(count_from(10, 6), 6, "");
  {
    BlockTable table = kv_cache.make_table(1);
    REQUIRE(table.grow_to(1));
  }
  Text text(kv_cache, 2, count_from(10, 6));
  CHECK_THROWS_AS(static_cast<void>(kv_cache.adopt(text.table, match, text.published)), InvariantError);
  kv_cache.reset_prefix_cache();
  kv_cache.check_invariants();
  CHECK(num_found(kv_cache, count_from(10, 6)) == 0);
  CHECK(kv_cache.host_pool().cached_free_blocks().empty());
}

}  // namespace fastpaged::test
