#include "fastpaged/kv_cache/prefix_index.h"

#include <doctest/doctest.h>

#include <map>
#include <optional>
#include <set>

#include "fastpaged/base/check.h"
#include "random.h"

using fastpaged::BlockId;
using fastpaged::InvariantError;
using fastpaged::PrefixIndex;
using fastpaged::test::Random;

TEST_CASE("an index offers exactly the blocks with a hash, however many share it, after any insertions and erasures") {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::int32_t max_blocks = random.between(1, 24);
    const std::uint64_t mask = random.once_in(2) ? 7 : ~std::uint64_t{0};  // few hashes: long runs, around the end too
    PrefixIndex index(max_blocks);
    std::map<BlockId, std::uint64_t> model;
    for (int i = 0; i < 400; ++i) {
      const BlockId block = random.between(0, max_blocks - 1);
      const std::uint64_t some_hash = (std::uint64_t{random.bits()} << 32U | random.bits()) & mask;
      const BlockId other = random.between(0, max_blocks - 1);
      if (model.contains(block) && !model.contains(other) && random.once_in(2)) {
        index.replace(model.at(block), block, other);
        model[other] = model.at(block);
        model.erase(block);
      } else if (model.contains(block)) {
        index.erase(model.at(block), block);
        model.erase(block);
      } else {
        // Some of them at the array's end, so that runs go on at its beginning.
        const std::uint64_t hash = random.once_in(3) ? some_hash : (some_hash & 1U) + 62;
        index.insert(hash, block);
        model[block] = hash;
      }
      index.check_invariants();
      REQUIRE(index.size() == std::ssize(model));
      for (const auto& [known, hash] : model) {
        std::set<BlockId> offered;
        const BlockId wanted = known;
        const std::uint64_t its_hash = hash;
        const std::optional<BlockId> found = index.find(hash, [&](BlockId candidate) {
          CHECK(model.at(candidate) == its_hash);
          offered.insert(candidate);
          return candidate == wanted;
        });
        REQUIRE(found == known);
        CHECK(offered.contains(known));
      }
      CHECK_FALSE(index.find(some_hash, [](BlockId) { return false; }).has_value());
    }
    index.clear();
    CHECK(index.size() == 0);
    index.check_invariants();
  }
}

TEST_CASE("erasing what is not in an index is an error, not an endless search") {
  PrefixIndex index(2);
  index.insert(5, 0);
  CHECK_THROWS_AS(index.erase(5, 1), InvariantError);
  CHECK_THROWS_AS(index.replace(5, 1, 2), InvariantError);
  CHECK(index.size() == 1);
  index.check_invariants();
}
