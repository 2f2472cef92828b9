// The bits of paged attention, of every table: a query has the same ones alone, in a chunk and in its whole prompt,
// with blocks of any size, whatever lies in slots that it does not see.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "fastpaged/ops/kv_layout.h"
#include "fastpaged/ops/op_table.h"
#include "ops/table_runs.h"

namespace fastpaged {
namespace {

constexpr std::int64_t kNumHeads = 3;  // of one KV head
constexpr std::int64_t kLength = 300;  // reaches into a second span of keys

using Bits = std::vector<std::uint32_t>;

Bits bits_of(const Floats& values) {
  Bits bits;
  std::ranges::transform(values, std::back_inserter(bits), [](float x) { return std::bit_cast<std::uint32_t>(x); });
  return bits;
}

struct Queries {  // those at positions [begin, end)
  std::int64_t begin;
  std::int64_t end;
};

template <typename A>
class Prompt {
 public:
  Prompt(std::int64_t head_dim, std::int32_t window, unsigned seed)
      : head_dim_(head_dim), window_(window), random_(seed) {
    q_ = random_numbers<A>(random_, kLength * kNumHeads * head_dim, 2.0F);
    k_ = random_numbers<A>(random_, kLength * head_dim);
    v_ = random_numbers<A>(random_, kLength * head_dim);
  }

  // Only slots that one of the queries sees hold a number.
  Floats attend(const std::string& isa, Queries queries, std::int64_t block_size) {
    const std::int64_t num_blocks = (queries.end + block_size - 1) / block_size;
    std::vector<A> cache(static_cast<std::size_t>(num_blocks * 2 * block_size * head_dim_), kNan);
    const TensorView view = view_of(cache, {num_blocks, 2, 1, block_size, head_dim_});
    std::vector<std::int32_t> blocks;
    for (std::int64_t block = num_blocks; block-- > 0;) {
      blocks.push_back(static_cast<std::int32_t>(block));
    }
    const KVLayout<A> layout(view);
    for (std::int64_t at = window_ > 0 ? std::max<std::int64_t>(0, queries.begin - window_ + 1) : 0; at < queries.end;
         ++at) {
      write(layout, blocks[static_cast<std::size_t>(at / block_size)], at % block_size, at);
    }
    return run(isa, queries, view, blocks);
  }

  void set_value(std::int64_t position, float value) {
    std::fill_n(v_.begin() + position * head_dim_, head_dim_, rounded_to<A>(value));
  }
  [[nodiscard]] std::int64_t row_size() const { return kNumHeads * head_dim_; }

 private:
  static constexpr A kNan = [] {
    if constexpr (std::is_same_v<A, float>) {
      return std::numeric_limits<float>::quiet_NaN();
    } else {
      return BFloat16{0x7FC0};
    }
  }();

  void write(const KVLayout<A>& layout, std::int64_t block, std::int64_t slot, std::int64_t position) {
    for (std::int64_t d = 0; d < head_dim_; ++d) {
      layout.keys(block, 0)[layout.key_element(slot, d)] = k_[static_cast<std::size_t>(position * head_dim_ + d)];
      layout.values(block, 0)[layout.value_element(slot, d)] = v_[static_cast<std::size_t>(position * head_dim_ + d)];
    }
  }

  Floats run(const std::string& isa, Queries queries, const TensorView& cache, std::vector<std::int32_t>& blocks) {
    const std::int64_t count = queries.end - queries.begin;
    std::vector<A> q(q_.begin() + queries.begin * row_size(), q_.begin() + queries.end * row_size());
    std::vector<A> out(q.size());
    std::vector<std::int32_t> query_start{0, static_cast<std::int32_t>(count)};
    std::vector<std::int32_t> context_lens{static_cast<std::int32_t>(queries.end)};
    ThreadPool pool(2);
    op_table(isa).paged_attention({.q = view_of(q, {count, kNumHeads, head_dim_}),
                                   .kv_cache = cache,
                                   .query_start = view_of(query_start, {2}),
                                   .context_lens = view_of(context_lens, {1}),
                                   .block_tables = view_of(blocks, {1, static_cast<std::int64_t>(blocks.size())}),
                                   .out = view_of(out, {count, row_size()}),
                                   .scale = 0.25F,
                                   .window = window_},
                                  pool);
    return widened(out);
  }

  std::int64_t head_dim_;
  std::int32_t window_;
  std::mt19937 random_;
  std::vector<A> q_;
  std::vector<A> k_;
  std::vector<A> v_;
};

template <typename A>
void expect_the_same_bits_of_any_chunk(const std::string& isa, std::int64_t head_dim, std::int32_t window) {
  Prompt<A> prompt(head_dim, window, 7);
  const Bits whole = bits_of(prompt.attend(isa, {0, kLength}, 16));
  for (const std::int64_t block_size : {32, 16, 5}) {
    CAPTURE(block_size);
    for (const Queries queries : {Queries{0, 1}, {31, 32}, {32, 33}, {10, 23}, {256, 257}, {240, 270}, {299, 300}}) {
      CAPTURE(queries.begin);
      const auto* const from = whole.data() + queries.begin * prompt.row_size();
      const Bits want(from, from + (queries.end - queries.begin) * prompt.row_size());
      CHECK((bits_of(prompt.attend(isa, queries, block_size)) == want));
    }
  }
}

TEST_CASE("a query has the same bits alone, in a chunk and in its prompt; what it does not see may be NaN") {
  for (const std::string& isa : fast_isas()) {
    CAPTURE(isa);
    for (const std::int64_t head_dim : {48, 64, 128}) {
      CAPTURE(head_dim);
      for (const std::int32_t window : {0, 45}) {
        CAPTURE(window);
        expect_the_same_bits_of_any_chunk<BFloat16>(isa, head_dim, window);
        expect_the_same_bits_of_any_chunk<float>(isa, head_dim, window);
      }
    }
  }
}

TEST_CASE("a value that is not finite reaches no query that does not see it") {
  constexpr std::int64_t kPosition = 37;
  for (const std::string& isa : fast_isas()) {
    CAPTURE(isa);
    for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      Prompt<BFloat16> prompt(64, 50, 9);
      const Floats want = prompt.attend(isa, {0, kLength}, 16);
      prompt.set_value(kPosition, value);
      const Floats got = prompt.attend(isa, {0, kLength}, 16);
      const std::int64_t seen = kPosition * prompt.row_size();
      const std::int64_t passed = (kPosition + 50) * prompt.row_size();
      CHECK((std::equal(got.begin(), got.begin() + seen, want.begin())));
      CHECK((std::equal(got.begin() + passed, got.end(), want.begin() + passed)));
      CHECK((std::none_of(got.begin() + seen, got.begin() + passed, [](float x) { return std::isfinite(x); })));
    }
  }
}

}  // namespace
}  // namespace fastpaged
