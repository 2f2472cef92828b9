#include "fastpaged/kv_cache/block_pool.h"

#include <doctest/doctest.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <vector>

#include "random.h"

using fastpaged::BlockId;
using fastpaged::BlockPool;
using fastpaged::SequenceId;
using fastpaged::test::Random;

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
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const BlockId num_blocks = random.between(0, 8);
    BlockPool pool("device", num_blocks);
    SlowPool model(num_blocks);
    for (int i = 0; i < 500; ++i) {
      const BlockId block = random.between(-1, num_blocks);  // one unknown id at either end
      const auto owner = static_cast<SequenceId>(random.between(0, 3));
      const bool held = model.counts.contains(block);
      switch (random.between(0, 2)) {
        case 0:
          if (model.free.empty()) {
            CHECK_FALSE(pool.allocate(owner).has_value());
          } else {
            CHECK(pool.allocate(owner) == model.free.front());
            model.counts[model.free.front()] = 1;
            model.free.erase(model.free.begin());
          }
          break;
        case 1:
          if (held) {
            pool.retain(block, owner);
            ++model.counts[block];
          } else {
            CHECK_THROWS_AS(pool.retain(block, owner), std::invalid_argument);
          }
          break;
        default:
          if (held) {
            pool.release(block, owner);
            model.release(block);
          } else {
            CHECK_THROWS_AS(pool.release(block, owner), std::invalid_argument);
          }
      }
      pool.check_invariants();
      REQUIRE(pool.free_blocks() == model.free);
      REQUIRE(pool.num_free() == std::ssize(model.free));
      for (BlockId id = 0; id < num_blocks; ++id) {
        REQUIRE(pool.ref_count(id) == (model.counts.contains(id) ? model.counts[id] : 0));
      }
    }
  }
}

TEST_CASE("giving a block back twice is an immediate error that names the block, who did it, and who had it last") {
  BlockPool pool("device", 3);
  REQUIRE(pool.allocate(4) == 0);
  pool.retain(0, 9);
  pool.release(0, 4);
  pool.release(0, 9);
  CHECK_THROWS_WITH_AS(
      pool.release(0, 4),
      "sequence 4 cannot release block 0 of the device pool: it is free, last given back by sequence 9",
      std::invalid_argument);
  CHECK(pool.free_blocks() == std::vector<BlockId>{0, 1, 2});
  pool.check_invariants();
}

TEST_CASE("sharing a free block and naming an unknown one are errors that say so") {
  BlockPool pool("host", 2);
  CHECK_THROWS_WITH_AS(pool.retain(1, 7),
                       "sequence 7 cannot share block 1 of the host pool: it is free, never allocated",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(pool.release(2, 7), "block 2 is unknown: the host pool has 2 blocks", std::invalid_argument);
  CHECK_THROWS_WITH_AS(pool.retain(-1, 7), "block -1 is unknown: the host pool has 2 blocks", std::invalid_argument);
  CHECK_THROWS_WITH_AS((void)pool.ref_count(2), "block 2 is unknown: the host pool has 2 blocks",
                       std::invalid_argument);
  CHECK(pool.num_free() == 2);
}

TEST_CASE("a pool may be empty, but not less") {
  BlockPool none("host", 0);
  CHECK(none.allocate(1) == std::nullopt);
  none.check_invariants();
  CHECK_THROWS_WITH_AS(BlockPool("host", -3), "num_blocks must be >= 0, got -3", std::invalid_argument);
}
