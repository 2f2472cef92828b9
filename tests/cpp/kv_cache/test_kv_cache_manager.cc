#include "fastpaged/kv_cache/kv_cache_manager.h"

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "fastpaged/base/check.h"

using fastpaged::BlockCopy;
using fastpaged::BlockId;
using fastpaged::BlockTable;
using fastpaged::CopyKind;
using fastpaged::InvariantError;
using fastpaged::KVCacheManager;

namespace {

std::vector<BlockId> ids(const BlockTable& table) {
  return {table.blocks().begin(), table.blocks().end()};
}

// The message of the InvariantError, without the place in the source.
template <typename Call>
std::string broken(Call&& call) {
  try {
    call();
  } catch (const InvariantError& error) {
    const std::string message = error.what();
    return message.substr(message.find(": broken invariant: ") + 2);
  }
  return "nothing";
}

}  // namespace

TEST_CASE("every block size from 1 to 256 reserves exactly the blocks that the tokens fill") {
  for (std::int32_t block_size = 1; block_size <= 256; ++block_size) {
    CAPTURE(block_size);
    KVCacheManager kv_cache(3, block_size);
    BlockTable table = kv_cache.make_table(1);
    std::int32_t blocks = 0;
    for (std::int64_t num_tokens = 0; num_tokens <= kv_cache.capacity(); ++num_tokens) {
      if (num_tokens > std::int64_t{blocks} * block_size) {
        ++blocks;  // the last block overflowed
      }
      REQUIRE(kv_cache.blocks_for(num_tokens) == blocks);
      REQUIRE(kv_cache.reserve(table, 0, num_tokens));
      REQUIRE(table.size() == blocks);
      REQUIRE(kv_cache.num_free_blocks() == 3 - blocks);
    }
    CHECK(kv_cache.capacity() == 3 * block_size);
    CHECK_FALSE(kv_cache.reserve(table, 0, kv_cache.capacity() + 1));
    kv_cache.check_invariants();
  }
}

TEST_CASE("a reservation that does not fit leaves table and pool as they were") {
  KVCacheManager kv_cache(4, 2);
  BlockTable first = kv_cache.make_table(1);
  BlockTable second = kv_cache.make_table(2);
  REQUIRE(kv_cache.reserve(first, 0, 3));
  REQUIRE(kv_cache.reserve(second, 0, 1));
  CHECK(kv_cache.missing_blocks(second, 1, 4) == 2);
  CHECK_FALSE(kv_cache.reserve(second, 1, 4));  // wants two more, one is free
  CHECK(second.size() == 1);
  CHECK(kv_cache.num_free_blocks() == 1);
  CHECK(kv_cache.reserve(second, 1, 3));
}

TEST_CASE("reserving less than the table has keeps the blocks") {
  KVCacheManager kv_cache(4, 2);
  BlockTable table = kv_cache.make_table(1);
  REQUIRE(kv_cache.reserve(table, 0, 8));
  CHECK(kv_cache.reserve(table, 0, 1));
  CHECK(table.size() == 4);
}

TEST_CASE("the first to write into a shared block gets a copy, the last one has it for itself") {
  KVCacheManager kv_cache(8, 2);
  BlockTable parent = kv_cache.make_table(1);
  REQUIRE(kv_cache.reserve(parent, 0, 3));
  BlockTable child = parent.fork(2, 2);
  const std::uint64_t version = child.version();
  REQUIRE(kv_cache.missing_blocks(child, 3, 1) == 1);
  REQUIRE(kv_cache.reserve(child, 3, 1));
  CHECK(ids(child) == std::vector<BlockId>{0, 2});
  CHECK(child.version() != version);
  REQUIRE(kv_cache.missing_blocks(parent, 3, 1) == 0);
  REQUIRE(kv_cache.reserve(parent, 3, 1));
  CHECK(ids(parent) == std::vector<BlockId>{0, 1});
  CHECK(kv_cache.take_copies() == std::vector<BlockCopy>{{CopyKind::kCopyOnWrite, 1, 2, 1}});
  kv_cache.check_writable(child, 3, 1);
  kv_cache.check_writable(parent, 3, 1);
}

TEST_CASE("a copy on write that has no room leaves the block shared and notes no copy") {
  KVCacheManager kv_cache(2, 2);
  BlockTable parent = kv_cache.make_table(1);
  REQUIRE(kv_cache.reserve(parent, 0, 3));
  BlockTable child = parent.fork(2, 2);
  CHECK_FALSE(kv_cache.reserve(child, 3, 1));
  CHECK(ids(child) == ids(parent));
  CHECK(kv_cache.take_copies().empty());
}

TEST_CASE("writing no token takes no block and copies none") {
  KVCacheManager kv_cache(4, 2);
  BlockTable parent = kv_cache.make_table(1);
  REQUIRE(kv_cache.reserve(parent, 0, 1));
  BlockTable child = parent.fork(2, 1);
  CHECK(kv_cache.missing_blocks(child, 1, 0) == 0);
  REQUIRE(kv_cache.reserve(child, 1, 0));
  CHECK(ids(child) == ids(parent));
  kv_cache.check_writable(child, 1, 0);
}

TEST_CASE("writing into a shared block is an immediate error that names block and sequence") {
  KVCacheManager kv_cache(4, 2, 4);
  BlockTable parent = kv_cache.make_table(7);
  REQUIRE(kv_cache.reserve(parent, 0, 3));
  BlockTable child = parent.fork(8, 2);
  const BlockTable third = parent.fork(9, 1);
  CHECK(broken([&] { kv_cache.check_writable(child, 3, 1); }) ==
        "broken invariant: sequence 8 would write into block 1, which 2 tables share");
  CHECK(broken([&] { kv_cache.check_writable(parent, 1, 1); }) ==
        "broken invariant: sequence 7 would write into block 0, which 3 tables share");
  CHECK(broken([&] { kv_cache.check_writable(child, 3, 2); }) ==
        "broken invariant: sequence 8 would write into block 2 of its table, which has 2");
}

TEST_CASE("a table on the host is neither grown nor written, nor swapped the wrong way") {
  KVCacheManager kv_cache(4, 2, 4);
  BlockTable table = kv_cache.make_table(7);
  REQUIRE(kv_cache.reserve(table, 0, 3));
  BlockTable* const tables[] = {&table};
  const std::string on_device =
      "broken invariant: sequence 7 holds blocks of the device pool where it must hold the host pool's";
  const std::string on_host =
      "broken invariant: sequence 7 holds blocks of the host pool where it must hold the device pool's";
  CHECK(broken([&] { (void)kv_cache.swap_in(tables); }) == on_device);
  REQUIRE(kv_cache.swap_out(tables));
  CHECK(broken([&] { (void)kv_cache.swap_out(tables); }) == on_host);
  CHECK(broken([&] { (void)kv_cache.reserve(table, 3, 1); }) == on_host);
  CHECK(broken([&] { kv_cache.check_writable(table, 2, 1); }) == on_host);
  CHECK(kv_cache.num_free_blocks() == 4);
  kv_cache.check_invariants();
}

TEST_CASE("tables that are swapped together take a block they share along once and share it there") {
  KVCacheManager kv_cache(8, 2, 5);
  BlockTable parent = kv_cache.make_table(1);
  REQUIRE(kv_cache.reserve(parent, 0, 5));
  BlockTable child = parent.fork(2, 2);
  REQUIRE(kv_cache.reserve(child, 4, 3));  // 3 blocks of the parent's, two more of its own
  BlockTable* const tables[] = {&parent, &child};
  const BlockTable* const views[] = {&parent, &child};
  CHECK(KVCacheManager::num_distinct_blocks(views) == 5);
  REQUIRE(kv_cache.swap_out(tables));
  CHECK(kv_cache.num_free_blocks() == 8);
  CHECK(ids(parent) == std::vector<BlockId>{0, 1, 2});
  CHECK(ids(child) == std::vector<BlockId>{0, 1, 3, 4});
  CHECK(kv_cache.host_pool().ref_count(1) == 2);
  CHECK(kv_cache.take_copies() == std::vector<BlockCopy>{{CopyKind::kSwapOut, 0, 0, 5}});
  REQUIRE(kv_cache.swap_in(tables));
  CHECK(kv_cache.host_pool().num_free() == 5);
  CHECK(KVCacheManager::num_distinct_blocks(views) == 5);
  CHECK(parent.is_shared(1));
  CHECK_FALSE(parent.is_shared(2));
  CHECK(kv_cache.take_copies() == std::vector<BlockCopy>{{CopyKind::kSwapIn, 0, 0, 5}});
}

TEST_CASE("tables for which the other tier has no room stay where they are") {
  KVCacheManager kv_cache(8, 2, 2);
  BlockTable table = kv_cache.make_table(1);
  REQUIRE(kv_cache.reserve(table, 0, 5));
  BlockTable* const tables[] = {&table};
  CHECK_FALSE(kv_cache.swap_out(tables));
  CHECK(ids(table) == std::vector<BlockId>{0, 1, 2});
  CHECK(kv_cache.host_pool().num_free() == 2);
  CHECK(kv_cache.take_copies().empty());
}

TEST_CASE("a cache says which of its sizes is wrong, and what is allowed") {
  CHECK_THROWS_WITH_AS(KVCacheManager(0, 16), "num_blocks must be > 0, got 0", std::invalid_argument);
  CHECK_THROWS_WITH_AS(KVCacheManager(-3, 16), "num_blocks must be > 0, got -3", std::invalid_argument);
  CHECK_THROWS_WITH_AS(KVCacheManager(1, 0), "block_size must be in [1, 256], got 0", std::invalid_argument);
  CHECK_THROWS_WITH_AS(KVCacheManager(1, 257), "block_size must be in [1, 256], got 257", std::invalid_argument);
  CHECK_THROWS_WITH_AS(KVCacheManager(1, 1, -1), "num_host_blocks must be >= 0, got -1", std::invalid_argument);
  CHECK_THROWS_WITH_AS(KVCacheManager(2'000'000'000, 256),
                       "num_blocks x block_size must be <= 2147483647, got 2000000000 x 256", std::invalid_argument);
  CHECK_THROWS_AS((void)KVCacheManager(1, 1).blocks_for(-1), std::invalid_argument);
}
