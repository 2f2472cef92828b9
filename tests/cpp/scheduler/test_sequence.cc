#include "fastpaged/scheduler/sequence.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "fastpaged/base/check.h"
#include "fastpaged/kv_cache/kv_cache_manager.h"

namespace fastpaged::test {

TEST_CASE("a sequence counts prompt, output and computed tokens, and forgets only the computed ones") {
  KVCacheManager kv_cache(4, 2);
  Sequence sequence(3, {10, 11, 12}, kv_cache.make_table(3));
  REQUIRE(kv_cache.reserve(sequence.table(), 0, 3));
  CHECK(sequence.advance(2) == 0);
  CHECK(sequence.num_uncomputed_tokens() == 1);
  CHECK(sequence.advance(1) == 0);
  sequence.append(40);
  sequence.append(41);
  CHECK(sequence.num_tokens() == 5);
  CHECK(sequence.num_prompt_tokens() == 3);
  CHECK(sequence.num_output_tokens() == 2);
  CHECK(sequence.num_computed_tokens() == 3);
  CHECK(sequence.num_uncomputed_tokens() == 2);
  CHECK(sequence.token_ids()[3] == 40);
  sequence.forget_computed(kv_cache.make_table(3));
  CHECK(sequence.num_computed_tokens() == 0);
  CHECK(sequence.num_output_tokens() == 2);
  CHECK(kv_cache.num_free_blocks() == 4);
}

TEST_CASE("a sequence cannot be computed past its last token, nor without blocks to hold it") {
  KVCacheManager kv_cache(4, 2);
  Sequence sequence(3, {10, 11, 12}, kv_cache.make_table(3));
  CHECK_THROWS_AS(sequence.advance(4), InvariantError);
  CHECK_THROWS_AS(sequence.advance(-1), InvariantError);
  REQUIRE(kv_cache.reserve(sequence.table(), 0, 2));
  sequence.advance(2);
  sequence.check_invariants(2);
  sequence.advance(1);
  CHECK_THROWS_AS(sequence.check_invariants(2), InvariantError);
}

TEST_CASE("a sequence says how many of its tokens are computed for the second time") {
  KVCacheManager kv_cache(4, 2);
  Sequence sequence(3, {10, 11, 12, 13}, kv_cache.make_table(3));
  REQUIRE(kv_cache.reserve(sequence.table(), 0, 3));
  CHECK(sequence.advance(3) == 0);
  sequence.forget_computed(kv_cache.make_table(3));
  REQUIRE(kv_cache.reserve(sequence.table(), 0, 4));
  CHECK(sequence.advance(1) == 1);
  CHECK(sequence.advance(3) == 2);
}

TEST_CASE("the most tokens for so many rows are what counting them one by one gives") {
  constexpr std::int32_t kPrompt = 5;
  KVCacheManager kv_cache(20, 1);
  for (const std::int32_t scored_before : {-1, 0, 2, 4}) {  // -1: no scores are wanted
    for (std::int32_t num_output = 0; num_output <= 2; ++num_output) {
      for (std::int32_t computed = 0; computed < kPrompt + num_output; ++computed) {
        Sequence sequence(3, std::vector<TokenId>(kPrompt, 7), kv_cache.make_table(3));
        if (scored_before >= 0) {
          sequence.score_prompt();
          sequence.advance(scored_before);
        }
        sequence.forget_computed(kv_cache.make_table(3));
        for (std::int32_t i = 0; i < num_output; ++i) {
          sequence.append(8);
        }
        sequence.advance(computed);
        const std::int32_t known = scored_before < 0 ? kPrompt : std::max(scored_before, computed);
        const auto rows = [&](std::int32_t num_tokens) {
          std::int32_t count = computed + num_tokens == kPrompt + num_output ? 1 : 0;
          for (std::int32_t position = computed; position < computed + num_tokens; ++position) {
            count += position >= known && position + 1 < kPrompt ? 1 : 0;
          }
          return count;
        };
        for (std::int32_t wanted = 1; wanted <= sequence.num_uncomputed_tokens(); ++wanted) {
          REQUIRE(sequence.num_rows(wanted) == rows(wanted));
          for (std::int32_t num_rows = 1; num_rows <= 8; ++num_rows) {
            std::int32_t most = wanted;
            while (rows(most) > num_rows) {
              --most;
            }
            REQUIRE(most > 0);
            REQUIRE(sequence.most_tokens(wanted, num_rows) == most);
          }
        }
      }
    }
  }
}

TEST_CASE("a sequence wants its scores before anything of it is computed, or never") {
  KVCacheManager kv_cache(4, 2);
  Sequence sequence(3, {10, 11, 12}, kv_cache.make_table(3));
  REQUIRE(kv_cache.reserve(sequence.table(), 0, 3));
  CHECK(sequence.num_scored() == 2);
  sequence.score_prompt();
  CHECK(sequence.num_scored() == 0);
  sequence.advance(1);
  CHECK(sequence.num_scored() == 1);
  CHECK_THROWS_AS(sequence.score_prompt(), InvariantError);
  sequence.advance(2);
  sequence.append(40);
  sequence.advance(1);
  CHECK(sequence.num_scored() == 2);
  CHECK(sequence.fork(5, 1, 2).num_scored() == 2);
}

TEST_CASE("a branch has its parent's tokens and shares the blocks that are asked for") {
  KVCacheManager kv_cache(4, 2);
  Sequence parent(3, {10, 11, 12}, kv_cache.make_table(3));
  REQUIRE(kv_cache.reserve(parent.table(), 0, 4));
  parent.advance(3);
  parent.append(40);
  const Sequence child = parent.fork(5, 3, 2);
  CHECK(child.id() == 5);
  CHECK(child.branch() == 3);
  CHECK(child.table().owner() == 5);
  CHECK(std::ranges::equal(child.token_ids(), parent.token_ids()));
  CHECK(child.num_prompt_tokens() == 3);
  CHECK(child.num_output_tokens() == 1);
  CHECK(child.num_computed_tokens() == 3);
  CHECK(std::ranges::equal(child.table().blocks(), parent.table().blocks()));
  CHECK(kv_cache.num_free_blocks() == 2);
}

TEST_CASE("a branch that waits for another's blocks may hold none of its own") {
  KVCacheManager kv_cache(4, 2);
  Sequence parent(3, {10, 11, 12}, kv_cache.make_table(3));
  Sequence child(4, {10, 11, 13}, kv_cache.make_table(4));
  child.rebuild_from(parent, 2);
  child.check_invariants(2);
  REQUIRE(kv_cache.reserve(parent.table(), 0, 3));
  parent.advance(3);
  child.take_over_from(parent, 2, 1);
  CHECK(child.rebuild().from == nullptr);
  CHECK(child.num_computed_tokens() == 2);
  CHECK(child.table().size() == 1);
  CHECK(child.table().is_shared(0));
  child.rebuild_from(parent, 2);
  CHECK_THROWS_AS(child.check_invariants(2), InvariantError);
}

}  // namespace fastpaged::test
