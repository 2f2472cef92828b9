#include "fastpaged/kv_cache/kv_cache_manager.h"

#include <doctest/doctest.h>

#include <stdexcept>

using fastpaged::BlockTable;
using fastpaged::KVCacheManager;

TEST_CASE("every block size from 1 to 256 reserves exactly the blocks that the tokens fill") {
  for (std::int32_t block_size = 1; block_size <= 256; ++block_size) {
    CAPTURE(block_size);
    KVCacheManager kv_cache(3, block_size);
    BlockTable table = kv_cache.make_table();
    std::int32_t blocks = 0;
    for (std::int64_t num_tokens = 0; num_tokens <= kv_cache.capacity(); ++num_tokens) {
      if (num_tokens > std::int64_t{blocks} * block_size) {
        ++blocks;  // the last block overflowed
      }
      REQUIRE(kv_cache.blocks_for(num_tokens) == blocks);
      REQUIRE(kv_cache.reserve(table, num_tokens));
      REQUIRE(table.size() == blocks);
      REQUIRE(kv_cache.num_free_blocks() == 3 - blocks);
    }
    CHECK(kv_cache.capacity() == 3 * block_size);
    CHECK_FALSE(kv_cache.reserve(table, kv_cache.capacity() + 1));
    kv_cache.check_invariants();
  }
}

TEST_CASE("a reservation that does not fit leaves table and pool as they were") {
  KVCacheManager kv_cache(4, 2);
  BlockTable first = kv_cache.make_table();
  BlockTable second = kv_cache.make_table();
  REQUIRE(kv_cache.reserve(first, 3));
  REQUIRE(kv_cache.reserve(second, 1));
  CHECK_FALSE(kv_cache.reserve(second, 5));  // wants two more, one is free
  CHECK(second.size() == 1);
  CHECK(kv_cache.num_free_blocks() == 1);
  CHECK(kv_cache.reserve(second, 4));
}

TEST_CASE("reserving less than the table has keeps the blocks") {
  KVCacheManager kv_cache(4, 2);
  BlockTable table = kv_cache.make_table();
  REQUIRE(kv_cache.reserve(table, 8));
  CHECK(kv_cache.reserve(table, 1));
  CHECK(table.size() == 4);
}

TEST_CASE("a cache says which of its sizes is wrong, and what is allowed") {
  CHECK_THROWS_WITH_AS(KVCacheManager(0, 16), "num_blocks must be > 0, got 0", std::invalid_argument);
  CHECK_THROWS_WITH_AS(KVCacheManager(1, 0), "block_size must be in [1, 256], got 0", std::invalid_argument);
  CHECK_THROWS_WITH_AS(KVCacheManager(1, 257), "block_size must be in [1, 256], got 257", std::invalid_argument);
  CHECK_THROWS_WITH_AS(KVCacheManager(10'000'000, 256),
                       "num_blocks x block_size must be <= 2147483647, got 10000000 x 256", std::invalid_argument);
  CHECK_THROWS_AS((void)KVCacheManager(1, 1).blocks_for(-1), std::invalid_argument);
}
