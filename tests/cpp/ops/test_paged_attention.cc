// Paged attention of every table against the scalar one, on arrays of exactly the size it may touch.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fastpaged/ops/op_table.h"
#include "ops/table_runs.h"

namespace fastpaged {
namespace {

struct Shape {
  std::int32_t num_heads;
  std::int32_t num_kv_heads;
  std::int32_t head_dim;
  std::int32_t block_size;
  std::int32_t window = 0;
  float soft_cap = 0.0F;
  bool alibi = false;
};

// Sequences of the given (queries, context), their blocks in a random order, with no block and no slot to spare.
template <typename A>
class Step {
 public:
  Step(const Shape& shape, const std::vector<std::pair<std::int32_t, std::int32_t>>& sequences, unsigned seed)
      : shape_(shape), random_(seed) {
    std::int32_t max_blocks = 0;
    for (const auto& [queries, context] : sequences) {
      query_start_.push_back(query_start_.back() + queries);
      context_lens_.push_back(context);
      num_blocks_ += (context + shape.block_size - 1) / shape.block_size;
      max_blocks = std::max(max_blocks, (context + shape.block_size - 1) / shape.block_size);
    }
    deal_blocks(max_blocks);
    q_ = random_numbers<A>(random_, std::int64_t{query_start_.back()} * shape.num_heads * shape.head_dim, 2.0F);
    kv_cache_ = random_numbers<A>(
        random_, std::int64_t{num_blocks_} * 2 * shape.num_kv_heads * shape.block_size * shape.head_dim);
    for (std::int32_t head = 0; shape.alibi && head < shape.num_heads; ++head) {
      slopes_.push_back(1.0F / static_cast<float>(2 + head));
    }
  }

  Floats attend(const std::string& isa, int num_threads) {
    std::vector<A> out(q_.size());
    ThreadPool pool(num_threads);
    const auto num_sequences = static_cast<std::int64_t>(context_lens_.size());
    op_table(isa).paged_attention(
        {.q = view_of(q_, {query_start_.back(), shape_.num_heads, shape_.head_dim}),
         .kv_cache = view_of(kv_cache_, {num_blocks_, 2, shape_.num_kv_heads, shape_.block_size, shape_.head_dim}),
         .query_start = view_of(query_start_, {num_sequences + 1}),
         .context_lens = view_of(context_lens_, {num_sequences}),
         .block_tables =
             view_of(block_tables_, {num_sequences, static_cast<std::int64_t>(block_tables_.size()) / num_sequences}),
         .alibi_slopes = view_of(slopes_, {shape_.num_heads}),
         .out = view_of(out, {query_start_.back(), shape_.num_heads * shape_.head_dim}),
         .scale = 0.25F,
         .soft_cap = shape_.soft_cap,
         .window = shape_.window},
        pool);
    return widened(out);
  }

 private:
  void deal_blocks(std::int32_t max_blocks) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(num_blocks_));
    for (std::int32_t block = 0; block < num_blocks_; ++block) {
      order[static_cast<std::size_t>(block)] = block;
    }
    std::shuffle(order.begin(), order.end(), random_);
    auto next = order.begin();
    for (const std::int32_t context : context_lens_) {
      for (std::int32_t block = 0; block < max_blocks; ++block) {
        block_tables_.push_back(block * shape_.block_size < context ? *next++ : -1);
      }
    }
  }

  Shape shape_;
  std::mt19937 random_;
  std::vector<std::int32_t> query_start_ = {0};
  std::vector<std::int32_t> context_lens_;
  std::vector<std::int32_t> block_tables_;
  std::int32_t num_blocks_ = 0;
  std::vector<A> q_;
  std::vector<A> kv_cache_;
  Floats slopes_;
};

template <typename A>
void expect_tables_to_agree(const Shape& shape, unsigned seed, float tolerance) {
  Step<A> step(shape, {{1, 1}, {3, 17}, {1, 256}, {40, 290}, {1, 257}, {2, 513}}, seed);
  const Floats want = step.attend("scalar", 1);
  for (const std::string& isa : fast_isas()) {
    CAPTURE(isa);
    const Floats got = step.attend(isa, 3);
    CHECK((got == step.attend(isa, 1)));
    float worst = 0.0F;
    for (std::size_t i = 0; i < got.size(); ++i) {
      worst = std::max(worst, std::abs(got[i] - want[i]));
    }
    CHECK(worst <= tolerance);
  }
}

TEST_CASE("attention agrees with the scalar table for every head size, group, window and rule") {
  unsigned seed = 0;
  for (std::int32_t head_dim = 16; head_dim <= 256; head_dim += 16) {
    const Shape shapes[] = {{.num_heads = 3, .num_kv_heads = 1, .head_dim = head_dim, .block_size = 16},
                            // A window without slopes: with them, keys before it weigh nothing anyway.
                            {.num_heads = 2, .num_kv_heads = 1, .head_dim = head_dim, .block_size = 5, .window = 21},
                            {.num_heads = 2,
                             .num_kv_heads = 2,
                             .head_dim = head_dim,
                             .block_size = 7,
                             .window = 1 + head_dim * 2,
                             .soft_cap = 4.0F,
                             .alibi = true}};
    for (const Shape& shape : shapes) {
      CAPTURE(head_dim);
      CAPTURE(shape.window);
      expect_tables_to_agree<float>(shape, ++seed, 1e-4F);
      expect_tables_to_agree<BFloat16>(shape, ++seed, 0.02F);
    }
  }
}

// What one query makes of two keys, whose scores are 0 and x and whose values are 0 and 1: the second one's weight.
float weight_of_second(const std::string& isa, float x) {
  constexpr std::int64_t kHeadDim = 16;
  Floats q(kHeadDim);
  Floats cache(2 * 2 * kHeadDim);  // blocks of one slot: [block][K|V][D]
  Floats out(kHeadDim);
  q[0] = 1.0F;
  cache[2 * kHeadDim] = x;
  cache[3 * kHeadDim] = 1.0F;
  std::vector<std::int32_t> query_start{0, 1};
  std::vector<std::int32_t> context_lens{2};
  std::vector<std::int32_t> block_tables{0, 1};
  ThreadPool pool(1);
  op_table(isa).paged_attention({.q = view_of(q, {1, 1, kHeadDim}),
                                 .kv_cache = view_of(cache, {2, 2, 1, 1, kHeadDim}),
                                 .query_start = view_of(query_start, {2}),
                                 .context_lens = view_of(context_lens, {1}),
                                 .block_tables = view_of(block_tables, {1, 2}),
                                 .out = view_of(out, {1, kHeadDim}),
                                 .scale = 1.0F},
                                pool);
  return out[0];
}

TEST_CASE("a key's weight is right to a few units in the last place, of its score and of its own") {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> scores(-85.0F, 85.0F);
  for (const std::string& isa : fast_isas()) {
    CAPTURE(isa);
    for (int i = 0; i < 2000; ++i) {
      const float x = scores(random) * static_cast<float>(i % 10 + 1) / 10.0F;
      CAPTURE(x);
      const double want = 1.0 / (1.0 + std::exp(-double{x}));
      const double ulps = 4.0 + std::abs(double{x});
      REQUIRE(std::abs(weight_of_second(isa, x) - want) <= ulps * 0x1p-23 * want);
    }
    CHECK((weight_of_second(isa, 0.0F) == 0.5F));
    CHECK((weight_of_second(isa, 1000.0F) == 1.0F));
    CHECK((weight_of_second(isa, -1000.0F) == 0.0F));
  }
}

}  // namespace
}  // namespace fastpaged
