#include "fastpaged/scheduler/sequence.h"

#include <doctest/doctest.h>

#include "fastpaged/base/check.h"
#include "fastpaged/kv_cache/kv_cache_manager.h"

namespace fastpaged::test {

TEST_CASE("a sequence counts prompt, output and computed tokens, and forgets only the computed ones") {
  KVCacheManager kv_cache(4, 2);
  Sequence sequence(3, {10, 11, 12}, kv_cache.make_table());
  REQUIRE(kv_cache.reserve(sequence.table(), 3));
  sequence.advance(2);
  CHECK(sequence.decodes());
  sequence.advance(1);
  sequence.append(40);
  sequence.append(41);
  CHECK(sequence.num_tokens() == 5);
  CHECK(sequence.num_prompt_tokens() == 3);
  CHECK(sequence.num_output_tokens() == 2);
  CHECK(sequence.num_computed_tokens() == 3);
  CHECK(sequence.num_uncomputed_tokens() == 2);
  CHECK(sequence.token_ids()[3] == 40);
  sequence.forget_computed();
  CHECK(sequence.num_computed_tokens() == 0);
  CHECK(sequence.num_output_tokens() == 2);
  CHECK(kv_cache.num_free_blocks() == 4);
}

TEST_CASE("a sequence cannot be computed past its last token, nor without blocks to hold it") {
  KVCacheManager kv_cache(4, 2);
  Sequence sequence(3, {10, 11, 12}, kv_cache.make_table());
  CHECK_THROWS_AS(sequence.advance(4), InvariantError);
  CHECK_THROWS_AS(sequence.advance(-1), InvariantError);
  REQUIRE(kv_cache.reserve(sequence.table(), 2));
  sequence.advance(2);
  sequence.check_invariants(2);
  sequence.advance(1);
  CHECK_THROWS_AS(sequence.check_invariants(2), InvariantError);
}

}  // namespace fastpaged::test
