#include "fastpaged/scheduler/sequence_group.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "fastpaged/base/check.h"

namespace fastpaged::test {
namespace {

constexpr std::int32_t kBlockSize = 2;

// A group that grows by hand. Branches are named by their place: 0 is the root.
class Tree {
 public:
  explicit Tree(std::int32_t prompt) : kv_cache(32, kBlockSize, 32) {
    group.sequences.push_back(std::make_unique<Sequence>(0, std::vector<TokenId>(prompt, 7), kv_cache.make_table(0)));
    compute(0, prompt);
    group.sequences[0]->append(1);
  }

  Sequence& branch(std::size_t place) const { return *group.sequences[place]; }

  void fork(std::size_t parent) {
    const SequenceId id = next_id_++;
    group.sequences.push_back(std::make_unique<Sequence>(
        branch(parent).fork(id, group.num_branches++, kv_cache.blocks_for(branch(parent).num_computed_tokens()))));
  }

  void decode(int steps) {
    for (int step = 0; step < steps; ++step) {
      for (std::size_t place = 0; place < group.sequences.size(); ++place) {
        compute(place, 1);
        branch(place).append(static_cast<TokenId>(place));
      }
    }
  }

  void compute(std::size_t place, std::int32_t num_tokens) {
    Sequence& sequence = branch(place);
    REQUIRE(kv_cache.reserve(sequence.table(), sequence.num_computed_tokens(), num_tokens));
    kv_cache.check_writable(sequence.table(), sequence.num_computed_tokens(), num_tokens);
    sequence.advance(num_tokens);
    group.take_over_from(sequence, kv_cache);
  }

  // Computes all that may be, a token at a time. Returns how many tokens that took.
  std::int32_t rebuild() {
    std::int32_t count = 0;
    while (!group.decodes()) {
      for (std::size_t place = 0; place < group.sequences.size(); ++place) {
        if (group.num_prefill_tokens(branch(place)) > 0) {
          compute(place, 1);
          ++count;
        }
      }
      REQUIRE(count < 1000);
    }
    return count;
  }

  [[nodiscard]] std::int32_t held() const {
    const std::vector<BlockTable*> tables = group.tables();
    return KVCacheManager::num_distinct_blocks(std::vector<const BlockTable*>(tables.begin(), tables.end()));
  }

  // How many leading blocks two branches share.
  [[nodiscard]] std::int64_t shared(std::size_t a, std::size_t b) const {
    const auto in_a = branch(a).table().blocks();
    return std::ranges::mismatch(in_a, branch(b).table().blocks()).in1 - in_a.begin();
  }

  KVCacheManager kv_cache;
  SequenceGroup group;

 private:
  SequenceId next_id_ = 1;
};

// 0 ─┬─ 0            prompt of 5; 0 and 1 part at token 5, 2 leaves 1 at token 9
//    └─ 1 ─┬─ 1      after that each has 13 computed tokens
//          └─ 2
struct Grandchild : Tree {
  Grandchild() : Tree(5) {
    fork(0);
    decode(4);
    fork(1);
    decode(4);
  }
};

}  // namespace

TEST_CASE("a recomputed fork tree computes each shared block once and holds the blocks it held") {
  Grandchild tree;
  const std::int32_t held = tree.held();
  CHECK(tree.shared(0, 1) == 2);  // the third block was written by both: copied
  CHECK(tree.shared(1, 2) == 4);
  CHECK(held == 7 + 5 + 3);
  tree.group.forget_computed(tree.kv_cache);
  CHECK(tree.kv_cache.num_free_blocks() == 32);
  CHECK(tree.branch(1).rebuild().from == &tree.branch(0));
  CHECK(tree.branch(1).rebuild().num_tokens == 4);
  CHECK(tree.branch(2).rebuild().from == &tree.branch(1));
  CHECK(tree.branch(2).rebuild().num_tokens == 8);
  CHECK(tree.rebuild() == 13 + (13 - 4) + (13 - 8));
  CHECK(tree.held() == held);
  CHECK(tree.shared(0, 1) == 2);
  CHECK(tree.shared(1, 2) == 4);
}

TEST_CASE("branches that have not parted yet share their last block again, half full as it is") {
  Tree tree(5);
  tree.fork(0);
  tree.fork(1);
  tree.group.forget_computed(tree.kv_cache);
  CHECK(tree.rebuild() == 5);
  CHECK(tree.held() == 3);
  tree.decode(1);  // two of the three copy it
  CHECK(tree.held() == 5);
}

TEST_CASE("grandchildren attach one after the other, each when its parent has come far enough") {
  Grandchild tree;
  tree.group.forget_computed(tree.kv_cache);
  CHECK(tree.group.num_prefill_tokens(tree.branch(1)) == 0);  // it waits
  tree.compute(0, 3);
  CHECK(tree.branch(1).num_computed_tokens() == 0);
  tree.compute(0, 1);
  CHECK(tree.branch(1).num_computed_tokens() == 4);
  CHECK(tree.branch(1).rebuild().from == nullptr);
  CHECK(tree.branch(2).num_computed_tokens() == 0);
  tree.compute(1, 3);
  CHECK(tree.branch(2).num_computed_tokens() == 0);
  tree.compute(1, 1);
  CHECK(tree.branch(2).num_computed_tokens() == 8);
  CHECK(tree.held() == 4);
}

TEST_CASE("when a parent ends in the middle of a rebuild, a child inherits, and the others wait for the heir") {
  Tree tree(8);
  tree.fork(0);
  tree.fork(0);
  tree.decode(3);
  tree.group.forget_computed(tree.kv_cache);
  tree.compute(0, 5);
  tree.group.erase(tree.branch(0), tree.kv_cache);
  REQUIRE(tree.group.num_sequences() == 2);
  CHECK(tree.branch(0).id() == 1);
  CHECK(tree.branch(0).num_computed_tokens() == 5);
  CHECK(tree.branch(0).rebuild().from == nullptr);
  CHECK(tree.branch(1).rebuild().from == &tree.branch(0));
  CHECK(tree.branch(1).rebuild().num_tokens == 8);
  CHECK(tree.held() == 3);
  CHECK(tree.rebuild() == (11 - 5) + (11 - 8));
  CHECK(tree.shared(0, 1) == 4);
}

TEST_CASE("the heir is the child that shares most: nothing that the others share is computed twice") {
  Tree tree(3);
  for (int i = 0; i < 3; ++i) {
    tree.fork(0);
    tree.decode(4);
  }
  const std::int32_t held = tree.held();
  const auto last = static_cast<std::int32_t>(tree.kv_cache.blocks_for(tree.branch(0).num_computed_tokens()));
  tree.group.forget_computed(tree.kv_cache);
  CHECK(tree.branch(1).rebuild().num_tokens == 2);
  CHECK(tree.branch(2).rebuild().num_tokens == 6);
  CHECK(tree.branch(3).rebuild().num_tokens == 10);
  tree.group.erase(tree.branch(0), tree.kv_cache);
  CHECK(tree.branch(2).rebuild().from == nullptr);
  CHECK(tree.branch(0).rebuild().from == &tree.branch(2));
  CHECK(tree.branch(1).rebuild().from == &tree.branch(2));
  CHECK(tree.branch(1).rebuild().num_tokens == 6);
  CHECK(tree.rebuild() == 15 + (15 - 2) + (15 - 6));
  CHECK(tree.held() == held - (last - 5));  // but for what was the root's alone
}

TEST_CASE("when a branch ends that still waits itself, its heir waits in its place") {
  Grandchild tree;
  tree.group.forget_computed(tree.kv_cache);
  tree.group.erase(tree.branch(1), tree.kv_cache);
  CHECK(tree.branch(1).id() == 2);
  CHECK(tree.branch(1).rebuild().from == &tree.branch(0));
  CHECK(tree.branch(1).rebuild().num_tokens == 4);  // what the parent would have had
  CHECK(tree.rebuild() == 13 + (13 - 4));
}

TEST_CASE("when a parent ends before it has computed anything, the heir begins at the beginning") {
  Grandchild tree;
  tree.group.forget_computed(tree.kv_cache);
  tree.group.erase(tree.branch(0), tree.kv_cache);
  CHECK(tree.branch(0).rebuild().from == nullptr);
  CHECK(tree.branch(0).num_computed_tokens() == 0);
  CHECK(tree.rebuild() == 13 + (13 - 8));
}

TEST_CASE("a tree that is forgotten in the middle of its rebuild is the same tree in the end") {
  Grandchild tree;
  const std::int32_t held = tree.held();
  for (int stop = 1; stop < 13; ++stop) {
    tree.group.forget_computed(tree.kv_cache);
    tree.compute(0, stop);
    tree.group.forget_computed(tree.kv_cache);
    CHECK(tree.rebuild() == 13 + (13 - 4) + (13 - 8));
    CHECK(tree.held() == held);
  }
}

TEST_CASE("erasing a branch of another group is a broken invariant") {
  Tree tree(3);
  const Tree other(3);
  CHECK_THROWS_AS(tree.group.erase(other.branch(0), tree.kv_cache), InvariantError);
}

}  // namespace fastpaged::test
