#include "fastpaged/kv_cache/block_pool.h"

#include <doctest/doctest.h>

#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <vector>

#include "fastpaged/base/check.h"
#include "random.h"

using fastpaged::BlockId;
using fastpaged::BlockPool;
using fastpaged::InvariantError;
using fastpaged::SequenceId;
using fastpaged::test::Random;

namespace {

// The pool said plainly: who is free, in the order of being handed out, how often each other block is held, and what is
// cached.
struct SlowPool {
  explicit SlowPool(BlockId num_blocks) {
    for (BlockId block = 0; block < num_blocks; ++block) {
      free.push_back(block);
    }
  }
  void release(BlockId block) {
    if (--counts.at(block) == 0) {
      counts.erase(block);
      free.insert(cached.contains(block) ? free.end() : free.begin(), block);
    }
  }
  void uncache(BlockId block) {
    cached.erase(block);
    if (std::erase(free, block) > 0) {
      free.insert(free.begin(), block);
    }
  }
  [[nodiscard]] std::vector<BlockId> free_blocks(bool is_cached) const {
    std::vector<BlockId> blocks = free;
    std::erase_if(blocks, [&](BlockId block) { return cached.contains(block) != is_cached; });
    return blocks;
  }
  std::vector<BlockId> free;
  std::map<BlockId, int> counts;
  std::set<BlockId> cached;
};

}  // namespace

TEST_CASE("a pool follows the plain model through random operations, wrong ones included") {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const BlockId num_blocks = random.between(0, 8);
    BlockPool pool("device", num_blocks);
    SlowPool model(num_blocks);
    std::vector<BlockId> evicted;
    std::vector<BlockId> should_be_evicted;
    pool.on_eviction([&](BlockId block, SequenceId) { evicted.push_back(block); });
    for (int i = 0; i < 500; ++i) {
      const BlockId block = random.between(-1, num_blocks);  // one unknown id at either end
      const auto owner = static_cast<SequenceId>(random.between(0, 3));
      const bool held = model.counts.contains(block);
      const bool cached = model.cached.contains(block);
      switch (random.between(0, 5)) {
        case 0:
          if (model.free.empty()) {
            CHECK_FALSE(pool.allocate(owner).has_value());
          } else {
            const BlockId next = model.free.front();
            CHECK(pool.allocate(owner) == next);
            model.counts[next] = 1;
            model.free.erase(model.free.begin());
            if (model.cached.erase(next) > 0) {
              should_be_evicted.push_back(next);
            }
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
        case 2:
          if (held) {
            pool.cache(block, owner);
            model.cached.insert(block);
          } else {
            CHECK_THROWS_AS(pool.cache(block, owner), std::invalid_argument);
          }
          break;
        case 3:
          if (cached) {
            CHECK(pool.take_cached(block, owner) == !held);
            std::erase(model.free, block);
            ++model.counts[block];
          } else if (block >= 0 && block < num_blocks) {
            CHECK_THROWS_AS(pool.take_cached(block, owner), InvariantError);
          }
          break;
        case 4:
          if (cached && random.once_in(2)) {
            pool.uncache(block);
            model.uncache(block);
          } else if (!cached && block >= 0 && block < num_blocks) {
            CHECK_THROWS_AS(pool.uncache(block), InvariantError);
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
      REQUIRE(pool.free_blocks() == model.free_blocks(false));
      REQUIRE(pool.cached_free_blocks() == model.free_blocks(true));
      REQUIRE(evicted == should_be_evicted);
      REQUIRE(pool.num_free() == std::ssize(model.free));
      for (BlockId id = 0; id < num_blocks; ++id) {
        REQUIRE(pool.ref_count(id) == (model.counts.contains(id) ? model.counts[id] : 0));
        REQUIRE(pool.is_cached(id) == model.cached.contains(id));
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

TEST_CASE("cached blocks are handed out last, the one that was given back first before the others") {
  BlockPool pool("device", 4);
  for (BlockId block = 0; block < 4; ++block) {
    REQUIRE(pool.allocate(1) == block);
  }
  std::vector<BlockId> evicted;
  pool.on_eviction([&](BlockId block, SequenceId new_owner) {
    CHECK(new_owner == 6);
    CHECK(pool.ref_count(block) == 1);  // the new owner's already
    CHECK_FALSE(pool.is_cached(block));
    evicted.push_back(block);
  });
  pool.cache(2, 1);
  pool.cache(0, 1);
  for (const BlockId block : {2, 1, 0, 3}) {
    pool.release(block, 1);
  }
  CHECK(pool.free_blocks() == std::vector<BlockId>{3, 1});
  CHECK(pool.cached_free_blocks() == std::vector<BlockId>{2, 0});
  CHECK(pool.take_cached(2, 5));
  pool.release(2, 5);  // used since: now block 0 has waited longest
  for (const BlockId block : {3, 1, 0, 2}) {
    CHECK(pool.allocate(6) == block);
  }
  CHECK(evicted == std::vector<BlockId>{0, 2});
  pool.check_invariants();
}

TEST_CASE("caching a free block is an error that names it") {
  BlockPool pool("device", 2);
  CHECK_THROWS_WITH_AS(pool.cache(1, 7),
                       "sequence 7 cannot cache block 1 of the device pool: it is free, never allocated",
                       std::invalid_argument);
}

TEST_CASE("a pool may be empty, but not less") {
  BlockPool none("host", 0);
  CHECK(none.allocate(1) == std::nullopt);
  none.check_invariants();
  CHECK_THROWS_WITH_AS(BlockPool("host", -3), "num_blocks must be >= 0, got -3", std::invalid_argument);
}
