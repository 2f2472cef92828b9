#include "fastpaged/kv_cache/block_table.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "fastpaged/kv_cache/block_pool.h"

using fastpaged::BlockId;
using fastpaged::BlockPool;
using fastpaged::BlockTable;

namespace {

std::vector<BlockId> ids(const BlockTable& table) {
  return {table.blocks().begin(), table.blocks().end()};
}

}  // namespace

TEST_CASE("tables never share a block, grow whole or not at all, and give everything back") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto num_blocks = static_cast<std::int32_t>(1 + random() % 12);
    BlockPool pool(num_blocks);
    std::vector<BlockTable> tables;
    std::vector<std::vector<BlockId>> model;  // what each table holds
    for (int i = 0; i < 4; ++i) {
      tables.emplace_back(pool);
      model.emplace_back();
    }
    for (int i = 0; i < 400; ++i) {
      const std::size_t a = random() % tables.size();
      const std::size_t b = random() % tables.size();
      const auto wanted = static_cast<std::int32_t>(random() % (num_blocks + 2));
      switch (random() % 4) {
        case 0:
          tables[a].clear();
          model[a].clear();
          break;
        case 1:
          if (a != b) {
            tables[a] = std::move(tables[b]);
            model[a] = std::exchange(model[b], {});
            CHECK(tables[b].size() == 0);
          }
          break;
        default: {
          std::size_t held = 0;
          for (const auto& blocks : model) {
            held += blocks.size();
          }
          const bool fits = wanted - std::ssize(model[a]) <= num_blocks - static_cast<std::int64_t>(held);
          REQUIRE(tables[a].grow_to(wanted) == fits);
          if (fits && wanted > std::ssize(model[a])) {
            REQUIRE(tables[a].size() == wanted);
            const std::vector<BlockId> now = ids(tables[a]);
            REQUIRE(std::equal(model[a].begin(), model[a].end(), now.begin()));  // the old blocks stay, in order
            model[a] = now;
          }
        }
      }
      pool.check_invariants();
      std::multiset<BlockId> all;
      for (std::size_t t = 0; t < tables.size(); ++t) {
        REQUIRE(ids(tables[t]) == model[t]);
        all.insert(model[t].begin(), model[t].end());
      }
      REQUIRE(std::set<BlockId>(all.begin(), all.end()).size() == all.size());
      REQUIRE(pool.num_free() == num_blocks - std::ssize(all));
    }
    tables.clear();
    CHECK(pool.num_free() == num_blocks);
  }
}

TEST_CASE("a table given back and grown again gets its blocks in the same order") {
  BlockPool pool(4);
  BlockTable table(pool);
  REQUIRE(table.grow_to(3));
  const std::vector<BlockId> before = ids(table);
  table.clear();
  REQUIRE(table.grow_to(3));
  CHECK(ids(table) == before);
}

TEST_CASE("assigning a table to itself keeps its blocks") {
  BlockPool pool(2);
  BlockTable table(pool);
  REQUIRE(table.grow_to(2));
  BlockTable& same = table;
  table = std::move(same);
  CHECK(table.size() == 2);
  CHECK(pool.num_free() == 0);
}

TEST_CASE("a destructor survives that somebody else gave a block of its table back") {
  BlockPool pool(3);
  {
    BlockTable table(pool);
    REQUIRE(table.grow_to(3));
    pool.release(table.blocks()[1]);
  }
  pool.check_invariants();
  CHECK(pool.num_free() == 3);
}
