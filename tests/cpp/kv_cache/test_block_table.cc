#include "fastpaged/kv_cache/block_table.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "fastpaged/kv_cache/block_pool.h"
#include "random.h"

using fastpaged::BlockId;
using fastpaged::BlockPool;
using fastpaged::BlockTable;
using fastpaged::SequenceId;
using fastpaged::test::Random;

namespace {

std::vector<BlockId> ids(const BlockTable& table) {
  return {table.blocks().begin(), table.blocks().end()};
}

}  // namespace

TEST_CASE("tables grow whole or not at all, share what was forked, move, and give everything back") {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::int32_t num_blocks = random.between(1, 12);
    BlockPool pool("device", num_blocks);
    std::vector<BlockTable> tables;
    std::vector<std::vector<BlockId>> model(4);  // what each table holds
    for (SequenceId owner = 0; owner < 4; ++owner) {
      tables.emplace_back(pool, owner);
    }
    for (int i = 0; i < 400; ++i) {
      const auto a = static_cast<std::size_t>(random.between(0, 3));
      const auto b = static_cast<std::size_t>(random.between(0, 3));
      const std::uint64_t version = tables[a].version();
      const std::vector<BlockId> before = model[a];
      switch (random.between(0, 4)) {
        case 0: {
          const std::int32_t kept = random.between(0, num_blocks);
          tables[a].truncate(kept);
          model[a].resize(std::min(model[a].size(), static_cast<std::size_t>(kept)));
          break;
        }
        case 1:
          if (a != b) {
            tables[a] = std::move(tables[b]);
            model[a] = std::exchange(model[b], {});
            CHECK(tables[b].size() == 0);
            CHECK(tables[a].version() > version);
          }
          break;
        case 2: {
          const std::int32_t shared = random.between(0, static_cast<std::int32_t>(model[b].size()));
          model[a] = {model[b].begin(), model[b].begin() + shared};
          tables[a] = tables[b].fork(a, shared);
          break;
        }
        default: {
          std::set<BlockId> held;
          for (const auto& blocks : model) {
            held.insert(blocks.begin(), blocks.end());
          }
          const std::int32_t wanted = random.between(0, num_blocks);
          const bool fits = wanted - std::ssize(model[a]) <= num_blocks - std::ssize(held);
          REQUIRE(tables[a].grow_to(wanted) == fits);
          CHECK(tables[a].version() == version);
          if (fits && wanted > std::ssize(model[a])) {
            REQUIRE(tables[a].size() == wanted);
            const std::vector<BlockId> now = ids(tables[a]);
            REQUIRE(std::equal(model[a].begin(), model[a].end(), now.begin()));  // the old blocks stay, in order
            model[a] = now;
          }
        }
      }
      const bool old_entries_stand =
          before.size() <= model[a].size() && std::equal(before.begin(), before.end(), model[a].begin());
      CHECK((old_entries_stand || tables[a].version() > version));
      pool.check_invariants();
      std::map<BlockId, int> holders;
      for (std::size_t t = 0; t < tables.size(); ++t) {
        REQUIRE(ids(tables[t]) == model[t]);
        for (const BlockId block : model[t]) {
          ++holders[block];
        }
      }
      REQUIRE(pool.num_free() == num_blocks - std::ssize(holders));
      for (const auto& [block, count] : holders) {
        REQUIRE(pool.ref_count(block) == count);
      }
    }
    tables.clear();
    CHECK(pool.num_free() == num_blocks);
  }
}

TEST_CASE("a table given back and grown again gets its blocks in the same order") {
  BlockPool pool("device", 4);
  BlockTable table(pool, 1);
  REQUIRE(table.grow_to(3));
  const std::vector<BlockId> before = ids(table);
  table.clear();
  REQUIRE(table.grow_to(3));
  CHECK(ids(table) == before);
}

TEST_CASE("growing past the whole pool is an immediate error that names the sequence, and changes nothing") {
  BlockPool pool("device", 3);
  BlockTable table(pool, 5);
  REQUIRE(table.grow_to(1));
  CHECK_THROWS_WITH_AS((void)table.grow_to(4), "sequence 5 cannot hold 4 blocks: the device pool has 3",
                       std::invalid_argument);
  CHECK(table.size() == 1);
  CHECK(pool.num_free() == 2);
}

TEST_CASE("a table whose block somebody else gave back refuses to give it back again, naming both") {
  BlockPool pool("device", 3);
  BlockTable table(pool, 5);
  REQUIRE(table.grow_to(2));
  pool.release(1, 8);
  CHECK_THROWS_WITH_AS(
      table.clear(), "sequence 5 cannot release block 1 of the device pool: it is free, last given back by sequence 8",
      std::invalid_argument);
  CHECK(pool.num_free() == 2);
  pool.check_invariants();
}

TEST_CASE("a destructor survives that somebody else gave a block of its table back") {
  BlockPool pool("device", 3);
  {
    BlockTable table(pool, 1);
    REQUIRE(table.grow_to(3));
    pool.release(table.blocks()[1], 2);
  }
  pool.check_invariants();
  CHECK(pool.num_free() == 3);
}

TEST_CASE("a fork shares the blocks it asks for, and no table has blocks beyond its size to fork") {
  BlockPool pool("device", 4);
  BlockTable parent(pool, 1);
  REQUIRE(parent.grow_to(3));
  {
    const BlockTable child = parent.fork(2, 2);
    CHECK(child.owner() == 2);
    CHECK(ids(child) == std::vector<BlockId>{0, 1});
    CHECK(parent.is_shared(1));
    CHECK(child.is_shared(1));
    CHECK_FALSE(parent.is_shared(2));
    CHECK(pool.num_free() == 1);
  }
  CHECK_FALSE(parent.is_shared(1));
  CHECK_THROWS_WITH_AS((void)parent.fork(2, 4), "num_blocks must be in [0, 3], the blocks of sequence 1, got 4",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS((void)parent.fork(2, -1), "num_blocks must be in [0, 3], the blocks of sequence 1, got -1",
                       std::invalid_argument);
}

TEST_CASE("replacing an entry gives the old block back and changes the version") {
  BlockPool pool("device", 4);
  BlockTable table(pool, 1);
  REQUIRE(table.grow_to(2));
  const std::uint64_t version = table.version();
  const BlockId block = pool.allocate(1).value();
  table.replace(0, block);
  CHECK(ids(table) == std::vector<BlockId>{block, 1});
  CHECK(table.version() != version);
  CHECK(pool.free_blocks() == std::vector<BlockId>{0, 3});
}

TEST_CASE("a table that moves to another pool gives back all it had and keeps its owner") {
  BlockPool device("device", 3);
  BlockPool host("host", 3);
  BlockTable table(device, 6);
  REQUIRE(table.grow_to(2));
  const std::uint64_t version = table.version();
  REQUIRE(host.allocate(6) == 0);
  REQUIRE(host.allocate(6) == 1);
  table.move_to(host, {1, 0});
  CHECK(&table.pool() == &host);
  CHECK(table.owner() == 6);
  CHECK(ids(table) == std::vector<BlockId>{1, 0});
  CHECK(table.version() != version);
  CHECK(device.free_blocks() == std::vector<BlockId>{0, 1, 2});
  table.clear();
  CHECK(host.num_free() == 3);
}

TEST_CASE("a moved table takes blocks and owner along and leaves an empty table of another version") {
  BlockPool pool("device", 3);
  BlockTable from(pool, 1);
  REQUIRE(from.grow_to(2));
  const std::uint64_t version = from.version();
  BlockTable to = std::move(from);
  CHECK(to.owner() == 1);
  CHECK(to.version() == version);  // its entries are the old ones
  CHECK(ids(to) == std::vector<BlockId>{0, 1});
  CHECK(from.size() == 0);  // NOLINT(bugprone-use-after-move): a moved-from table is empty
  CHECK(from.version() != version);
  BlockTable other(pool, 2);
  REQUIRE(other.grow_to(1));
  other = std::move(to);
  CHECK(other.owner() == 1);
  CHECK(ids(other) == std::vector<BlockId>{0, 1});
  CHECK(pool.num_free() == 1);
}

TEST_CASE("assigning a table to itself keeps its blocks") {
  BlockPool pool("device", 2);
  BlockTable table(pool, 1);
  REQUIRE(table.grow_to(2));
  BlockTable& same = table;
  table = std::move(same);
  CHECK(table.size() == 2);
  CHECK(pool.num_free() == 0);
}
