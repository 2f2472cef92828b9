#include "fastpaged/kv_cache/block_pool.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <stdexcept>
#include <vector>

using fastpaged::BlockId;
using fastpaged::BlockPool;

namespace {

// The pool said plainly: who is free, last given back first, and how often each other block is held.
struct SlowPool {
  explicit SlowPool(BlockId num_blocks) {
    for (BlockId block = 0; block < num_blocks; ++block) {
      free.push_back(block);
    }
  }
  void release(BlockId block) {
    if (--counts.at(block) == 0) {
      counts.erase(block);
      free.insert(free.begin(), block);
    }
  }
  std::vector<BlockId> free;
  std::map<BlockId, int> counts;
};

}  // namespace

TEST_CASE("a pool follows the plain model through random operations, wrong ones included") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto num_blocks = static_cast<BlockId>(1 + random() % 9);
    BlockPool pool(num_blocks);
    SlowPool model(num_blocks);
    for (int i = 0; i < 500; ++i) {
      const auto block = static_cast<BlockId>(random() % (num_blocks + 2)) - 1;  // one unknown id at either end
      const bool held = model.counts.contains(block);
      switch (random() % 3) {
        case 0:
          if (model.free.empty()) {
            CHECK_FALSE(pool.allocate().has_value());
          } else {
            CHECK(pool.allocate() == model.free.front());
            model.counts[model.free.front()] = 1;
            model.free.erase(model.free.begin());
          }
          break;
        case 1:
          if (held) {
            pool.retain(block);
            ++model.counts[block];
          } else {
            CHECK_THROWS_AS(pool.retain(block), std::invalid_argument);
          }
          break;
        default:
          if (held) {
            pool.release(block);
            model.release(block);
          } else {
            CHECK_THROWS_AS(pool.release(block), std::invalid_argument);
          }
      }
      pool.check_invariants();
      REQUIRE(pool.free_blocks() == model.free);
      REQUIRE(pool.num_free() == static_cast<std::int32_t>(model.free.size()));
      for (BlockId id = 0; id < num_blocks; ++id) {
        REQUIRE(pool.ref_count(id) == (model.counts.contains(id) ? model.counts[id] : 0));
      }
    }
  }
}

TEST_CASE("freeing a free block is an immediate error that names the block and its state") {
  BlockPool pool(2);
  const BlockId block = pool.allocate().value_or(-1);
  pool.release(block);
  CHECK_THROWS_WITH_AS(pool.release(block), "cannot release block 0: it is free (reference count 0)",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(pool.retain(block), "cannot retain block 0: it is free (reference count 0)",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(pool.release(2), "block 2 is unknown: this pool has blocks 0..1", std::invalid_argument);
  CHECK(pool.num_free() == 2);
}

TEST_CASE("a pool needs at least one block") {
  CHECK_THROWS_WITH_AS(BlockPool(0), "num_blocks must be > 0, got 0", std::invalid_argument);
  CHECK_THROWS_WITH_AS(BlockPool(-3), "num_blocks must be > 0, got -3", std::invalid_argument);
}
