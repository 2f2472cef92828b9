// How paged attention is cut: what a step costs must follow what its queries see.
#if defined(__x86_64__)
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "fastpaged/ops/cpu/attention_work.h"
#include "fastpaged/ops/op_table.h"

namespace fastpaged::cpu {
namespace {

constexpr std::int64_t kHeadDim = 64;

// Sequences with `num_queries` queries each, the last at position context - 1. Only shapes and lengths matter.
struct Step {
  Step(std::int64_t num_sequences, std::int32_t num_queries, std::int32_t context, std::int64_t num_heads,
       std::int64_t num_kv_heads)
      : context_lens(static_cast<std::size_t>(num_sequences), context) {
    for (std::int32_t s = 0; s <= num_sequences; ++s) {
      query_start.push_back(s * num_queries);
    }
    params.q = TensorView::dense(nullptr, DType::kFloat32, {num_sequences * num_queries, num_heads, kHeadDim});
    params.kv_cache = TensorView::dense(nullptr, DType::kFloat32, {1, 2, num_kv_heads, 16, kHeadDim});
    params.query_start = TensorView::dense(query_start.data(), DType::kInt32, {num_sequences + 1});
    params.context_lens = TensorView::dense(context_lens.data(), DType::kInt32, {num_sequences});
  }

  std::vector<std::int32_t> query_start;
  std::vector<std::int32_t> context_lens;
  PagedAttentionParams params;
};

std::int64_t num_apart(const AttentionPlan& plan) {
  return std::ranges::count_if(plan.works, [](const AttentionWork& work) { return work.partials >= 0; });
}

TEST_CASE("a decode step far into the context costs the spans of its window") {
  Step step(1, 1, 100'000, 8, 2);
  Workspace workspace;
  CHECK((plan_attention(step.params, kHeadDim, workspace).tiles.size() == 2U * 391U));  // without a window
  step.params.window = 512;
  const AttentionPlan plan = plan_attention(step.params, kHeadDim, workspace);
  REQUIRE((plan.works.size() == 2));
  CHECK((plan.tiles.size() == 2U * 3U));
  CHECK((plan.works[0].first_span == (100'000 - 512) / kSpan));
  CHECK((plan.works[0].num_spans == 3));
}

TEST_CASE("the spans of a work item are those that any of its rows sees, for every window") {
  for (const std::int32_t window : {0, 1, 2, 100, 255, 256, 257, 511, 512, 513, 2000}) {
    CAPTURE(window);
    Step step(1, 700, 1500, 3, 1);
    step.params.window = window;
    Workspace workspace;
    for (const AttentionWork& work : plan_attention(step.params, kHeadDim, workspace).works) {
      std::vector<bool> seen(6, false);
      for (std::int64_t row = work.row_begin; row < work.row_end; ++row) {
        const std::int64_t position = 800 + row / 3;
        for (std::int64_t key = 0; key <= position; ++key) {
          if (window == 0 || key > position - window) {
            seen[static_cast<std::size_t>(key / kSpan)] = true;
          }
        }
      }
      for (std::int64_t span = 0; span < 6; ++span) {
        const bool planned = span >= work.first_span && span < work.first_span + work.num_spans;
        CHECK((planned == seen[static_cast<std::size_t>(span)]));
      }
    }
  }
}

TEST_CASE("spans of few long contexts become tiles of their own, unless their partials would take too much memory") {
  Workspace workspace;
  Step decode(4, 1, 5'000, 8, 2);
  CHECK((num_apart(plan_attention(decode.params, kHeadDim, workspace)) == 8));
  Step many(64, 1, 5'000, 8, 2);
  CHECK((num_apart(plan_attention(many.params, kHeadDim, workspace)) == 0));
  Step large(1, 512, 500'000, 8, 1);
  const AttentionPlan plan = plan_attention(large.params, kHeadDim, workspace);
  CHECK((num_apart(plan) == 0));
  CHECK((plan.tiles.size() == plan.works.size()));
}

TEST_CASE("every work item is in one tile, in order; those that follow each other in a tile are small") {
  Workspace workspace;
  for (const std::int32_t context : {1, 200, 256, 257, 600, 5'000}) {
    for (const std::int64_t num_sequences : {1, 3, 64, 200}) {
      CAPTURE(context);
      CAPTURE(num_sequences);
      Step step(num_sequences, 1, context, 8, 2);
      const AttentionPlan plan = plan_attention(step.params, kHeadDim, workspace);
      std::int64_t next_work = 0;
      for (std::size_t i = 0; i < plan.tiles.size(); ++i) {
        const AttentionTile& tile = plan.tiles[i];
        const AttentionWork& first = plan.works[static_cast<std::size_t>(tile.work)];
        CHECK((tile.work == next_work));
        CHECK((tile.num_works == 1 || tile.num_works * first.num_spans <= 4));
        const bool is_last = first.partials < 0 || tile.span == first.num_spans - 1;
        next_work += is_last ? tile.num_works : 0;
      }
      CHECK((next_work == num_sequences * 2));
    }
  }
}

}  // namespace
}  // namespace fastpaged::cpu
#endif
