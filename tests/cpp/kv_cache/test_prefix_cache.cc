#include "fastpaged/kv_cache/prefix_cache.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "fastpaged/base/check.h"

using fastpaged::BlockId;
using fastpaged::InvariantError;
using fastpaged::PrefixCache;
using fastpaged::TokenId;

namespace {

using Tokens = std::vector<TokenId>;

constexpr std::uint64_t kMasks[] = {~std::uint64_t{0}, 1, 0};

}  // namespace

TEST_CASE("a block is found by its parent and all of its tokens, whatever their hashes are") {
  for (const std::uint64_t mask : kMasks) {
    CAPTURE(mask);
    PrefixCache cache(8, 3, mask);
    const PrefixCache::Node root = cache.make_root("");
    cache.add(5, root, Tokens{1, 2, 3});
    cache.add(2, 5, Tokens{1, 2, 3});
    cache.add(7, 5, Tokens{1, 2, 4});
    cache.check_invariants();
    CHECK(cache.find(root, Tokens{1, 2, 3}) == 5);
    CHECK(cache.find(5, Tokens{1, 2, 3}) == 2);
    CHECK(cache.find(5, Tokens{1, 2, 4}) == 7);
    CHECK(cache.find(root, Tokens{1, 2, 4}) == std::nullopt);
    CHECK(cache.find(2, Tokens{1, 2, 3}) == std::nullopt);
    CHECK(cache.find(5, Tokens{0, 2, 3}) == std::nullopt);
    CHECK(cache.num_cached() == 3);
    CHECK(cache.parent(7) == 5);
    CHECK(std::ranges::equal(cache.tokens(7), Tokens{1, 2, 4}));
  }
}

TEST_CASE("a root keeps its blocks to itself, and is forgotten with the last of them") {
  PrefixCache cache(4, 2);
  CHECK(cache.find_root("a") == std::nullopt);
  const PrefixCache::Node a = cache.make_root("a");
  cache.add(0, a, Tokens{1, 2});
  const PrefixCache::Node b = cache.make_root("b");
  cache.add(1, b, Tokens{1, 2});
  CHECK(a != b);
  CHECK(cache.make_root("a") == a);
  CHECK(cache.find(a, Tokens{1, 2}) == 0);
  CHECK(cache.find(b, Tokens{1, 2}) == 1);
  cache.erase(0);
  cache.check_invariants();
  CHECK(cache.find_root("a") == std::nullopt);
  CHECK(cache.find_root("b") == b);
  CHECK(cache.make_root("c") == a);  // its place is used again
  cache.add(3, a, Tokens{1, 2});
  cache.check_invariants();
  cache.clear();
  CHECK(cache.find_root("b") == std::nullopt);
  CHECK(cache.num_cached() == 0);
  CHECK(cache.num_erased() == 3);
  cache.check_invariants();
}

TEST_CASE("with a block goes all that goes on from it, and nothing else") {
  PrefixCache cache(8, 1);
  const PrefixCache::Node root = cache.make_root("");
  cache.add(0, root, Tokens{1});
  cache.add(1, 0, Tokens{1});
  cache.add(2, 0, Tokens{2});
  cache.add(3, 1, Tokens{1});
  cache.add(4, root, Tokens{2});
  CHECK(cache.erase(3).empty());
  cache.add(3, 1, Tokens{9});
  CHECK(cache.erase(0) == std::vector<BlockId>{2, 1, 3});
  cache.check_invariants();
  CHECK(cache.num_cached() == 1);
  CHECK(cache.num_erased() == 5);
  CHECK(cache.find(root, Tokens{2}) == 4);
}

TEST_CASE("the longest common beginning is looked for among the children used last, and the last of equals is taken") {
  constexpr std::int32_t kTried = PrefixCache::kMaxChildrenTried;
  PrefixCache cache(kTried + 2, 3);
  const PrefixCache::Node root = cache.make_root("");
  cache.add(0, root, Tokens{1, 2, 3});
  CHECK(cache.find_beginning(root, Tokens{1, 2, 4}).num_tokens == 2);
  CHECK(cache.find_beginning(root, Tokens{1}).num_tokens == 1);
  CHECK(cache.find_beginning(root, Tokens{2, 2, 3}).num_tokens == 0);
  CHECK(cache.find_beginning(root, Tokens{}).num_tokens == 0);
  cache.add(1, root, Tokens{1, 2, 5});
  CHECK(cache.find_beginning(root, Tokens{1, 2, 4}).block == 1);
  cache.touch(0);
  CHECK(cache.find_beginning(root, Tokens{1, 2, 4}).block == 0);
  cache.check_invariants();
  for (BlockId block = 2; block < kTried + 2; ++block) {
    cache.add(block, root, Tokens{7, 7, block});
    CHECK(cache.find_beginning(root, Tokens{1, 2, 4}).num_tokens == (block < kTried + 1 ? 2 : 0));
  }
  cache.touch(1);
  CHECK(cache.find_beginning(root, Tokens{1, 2, 4}).block == 1);
  cache.check_invariants();
}

TEST_CASE("an entry's id is never given to another one") {
  PrefixCache cache(2, 1);
  CHECK(cache.entry_id(0) == 0);
  cache.add(0, cache.make_root(""), Tokens{1});
  const std::uint64_t id = cache.entry_id(0);
  cache.touch(0);
  CHECK(cache.entry_id(0) == id);
  cache.erase(0);
  CHECK(cache.entry_id(0) == 0);
  cache.add(0, cache.make_root(""), Tokens{1});
  CHECK(cache.entry_id(0) != id);
  const std::uint64_t second = cache.entry_id(0);
  cache.clear();
  cache.add(0, cache.make_root(""), Tokens{1});
  CHECK(cache.entry_id(0) != id);
  CHECK(cache.entry_id(0) != second);
}

TEST_CASE("caching a block twice or forgetting one that is not cached is an error, and changes nothing") {
  PrefixCache cache(2, 1);
  cache.add(0, cache.make_root(""), Tokens{1});
  CHECK_THROWS_AS(cache.add(0, 0, Tokens{2}), InvariantError);
  CHECK_THROWS_AS(cache.erase(1), InvariantError);
  cache.check_invariants();
  CHECK(cache.num_cached() == 1);
}

TEST_CASE("what is moved is found with all that goes on from it, under the same id, and is no more recent") {
  for (const std::uint64_t mask : kMasks) {
    CAPTURE(mask);
    PrefixCache cache(8, 2, mask);
    const PrefixCache::Node root = cache.make_root("");
    cache.add(0, root, Tokens{1, 2});
    cache.add(1, root, Tokens{1, 3});
    cache.add(2, 0, Tokens{4, 5});
    cache.add(3, 0, Tokens{4, 6});
    const std::uint64_t id = cache.entry_id(0);
    const std::uint64_t before = cache.generation();
    cache.move(0, 7);
    cache.check_invariants();
    CHECK(cache.generation() != before);
    CHECK(cache.num_erased() == 0);
    CHECK_FALSE(cache.holds(0));
    CHECK(cache.entry_id(7) == id);
    CHECK(cache.find(root, Tokens{1, 2}) == 7);
    CHECK(cache.find(7, Tokens{4, 5}) == 2);
    CHECK(cache.parent(3) == 7);
    CHECK(cache.find_beginning(root, Tokens{1, 9}).block == 1);  // the one used last, as it was
    CHECK(cache.find_beginning(7, Tokens{4, 9}).block == 3);
    cache.move(3, 0);  // the first child
    cache.move(1, 6);  // and the first sibling
    cache.check_invariants();
    CHECK(cache.find(7, Tokens{4, 6}) == 0);
    CHECK(cache.find_beginning(root, Tokens{1, 9}).block == 6);
    cache.add(3, 0, Tokens{1, 1});
    CHECK(cache.erase(7) == std::vector<BlockId>{0, 2, 3});
    cache.check_invariants();
    CHECK_THROWS_AS(cache.move(7, 1), InvariantError);
    cache.add(1, root, Tokens{7, 7});
    CHECK_THROWS_AS(cache.move(1, 6), InvariantError);
    cache.check_invariants();
  }
}
