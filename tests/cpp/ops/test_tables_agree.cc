// Every table against the scalar one, on random shapes that fit no vector, in both activation dtypes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/table_runs.h"

namespace fastpaged {
namespace {

constexpr int kRounds = 40;

// A float32 result may differ in its last digits, a bfloat16 one by the rounding that follows from them.
template <typename A>
void check_close(const std::vector<A>& got, const std::vector<A>& want, float magnitude = 1.0F) {
  REQUIRE(got.size() == want.size());
  const float relative = std::is_same_v<A, BFloat16> ? 0x1p-7F : 4e-6F;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float value = to_float(want[i]);
    REQUIRE(std::abs(to_float(got[i]) - value) <= relative * std::abs(value) + 2e-6F * magnitude);
  }
}

// fn(table, pool, random) gives the same for scalar and for every other table, from the same random numbers.
template <typename Fn>
void compare_tables(const Fn& fn) {
  ThreadPool pool(2);
  for (const std::string& isa : fast_isas()) {
    CAPTURE(isa);
    for (unsigned round = 0; round < kRounds; ++round) {
      CAPTURE(round);
      std::mt19937 random(round);
      std::mt19937 again(round);
      check_close(fn(op_table(isa), pool, random), fn(op_table("scalar"), pool, again));
    }
  }
}

std::int64_t any_size(std::mt19937& random, std::int64_t most) {
  return std::uniform_int_distribution<std::int64_t>(1, most)(random);
}
bool any_bool(std::mt19937& random) {
  return random() % 2 != 0;
}

template <typename Out, typename Params>
auto run_norm(void (*OpTable::*op)(const Params&, ThreadPool&)) {
  return [op](const OpTable& ops, ThreadPool& pool, std::mt19937& random) {
    const std::int64_t rows = any_size(random, 5);
    const std::int64_t size = any_size(random, 150);
    auto x = random_numbers<float>(random, rows * size, 3.0F);
    auto residual = random_numbers<float>(random, any_bool(random) ? rows * size : 0);
    auto weight = random_numbers<float>(random, size);
    auto bias = random_numbers<float>(random, any_bool(random) ? size : 0);
    std::vector<Out> out(x.size());
    Params params{.x = view_of(x, {rows, size}),
                  .residual = view_of(residual, {rows, size}),
                  .weight = view_of(weight, {size}),
                  .out = view_of(out, {rows, size}),
                  .eps = 1e-5F};
    if constexpr (std::is_same_v<Params, LayerNormParams>) {
      params.bias = view_of(bias, {size});
    }
    (ops.*op)(params, pool);
    return out;
  };
}

template <typename A>
std::vector<A> run_embedding(const OpTable& ops, ThreadPool& pool, std::mt19937& random) {
  const std::int64_t tokens = any_size(random, 5);
  const std::int64_t size = any_size(random, 70);
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> positions;
  for (std::int64_t t = 0; t < tokens; ++t) {
    ids.push_back(static_cast<std::int32_t>(random() % 9));
    positions.push_back(static_cast<std::int32_t>(random() % 7));
  }
  auto table = random_numbers<A>(random, 9 * size);
  auto position_table = random_numbers<float>(random, any_bool(random) ? 7 * size : 0);
  Floats out(static_cast<std::size_t>(tokens * size));
  ops.embedding({.token_ids = view_of(ids, {tokens}),
                 .positions = view_of(positions, {tokens}),
                 .table = view_of(table, {9, size}),
                 .position_table = view_of(position_table, {7, size}),
                 .out = view_of(out, {tokens, size}),
                 .scale = 1.7F},
                pool);
  std::vector<A> rounded;
  std::transform(out.begin(), out.end(), std::back_inserter(rounded), rounded_to<A>);
  return rounded;
}

template <typename A>
std::vector<A> run_epilogues(const OpTable& ops, ThreadPool& pool, std::mt19937& random) {
  const std::int64_t rows = any_size(random, 5);
  const std::int64_t in = any_size(random, 8);
  const std::int64_t size = any_size(random, 70);
  auto x = random_numbers<A>(random, rows * in);
  auto weight = random_numbers<A>(random, 2 * size * in, 0.5F);
  auto bias = random_numbers<float>(random, any_bool(random) ? 2 * size : 0);
  const auto activation = static_cast<Activation>(random() % 4);
  const TensorView part = view_of(weight, {2 * size, in});
  const PackedLinear plain = ops.pack_linear({&part, 1}, kDType<A>, pool);
  const PackedLinear both = ops.pack_gated_linear({&part, 1}, kDType<A>, pool);
  std::vector<A> all(static_cast<std::size_t>(rows * 2 * size));
  std::vector<A> gated(static_cast<std::size_t>(rows * size));
  Floats sums(static_cast<std::size_t>(rows * 2 * size), 1.0F);
  LinearParams params{.x = view_of(x, {rows, in}),
                      .weight = &plain,
                      .bias = view_of(bias, {2 * size}),
                      .out = view_of(all, {rows, 2 * size}),
                      .activation = activation};
  ops.linear(params, pool);
  params.weight = &both;
  params.out = view_of(gated, {rows, size});
  ops.linear(params, pool);
  ops.linear(
      {.x = params.x, .weight = &plain, .bias = params.bias, .out = view_of(sums, {rows, 2 * size}), .adds = true},
      pool);
  all.insert(all.end(), gated.begin(), gated.end());
  std::transform(sums.begin(), sums.end(), std::back_inserter(all), rounded_to<A>);
  return all;
}

Floats run_float_ops(const OpTable& ops, ThreadPool& pool, std::mt19937& random) {
  const std::int64_t rows = any_size(random, 6);
  const std::int64_t size = any_size(random, 70);
  auto x = random_numbers<float>(random, rows * size, 5.0F);
  auto y = random_numbers<float>(random, rows * size);
  Floats out(x.size());
  std::vector<std::int32_t> order(static_cast<std::size_t>(rows));
  std::iota(order.rbegin(), order.rend(), 0);
  ops.soft_cap({.x = view_of(x, {rows, size}), .cap = 3.0F}, pool);
  ops.add({.x = view_of(x, {rows, size}), .y = view_of(y, {rows, size})}, pool);
  ops.gather_rows({.x = view_of(x, {rows, size}), .rows = view_of(order, {rows}), .out = view_of(out, {rows, size})},
                  pool);
  return out;
}

template <typename A>
std::vector<A> run_rotary(const OpTable& ops, ThreadPool& pool, std::mt19937& random) {
  const std::int64_t tokens = any_size(random, 3);
  const std::int64_t kv_heads = any_size(random, 2);
  const std::int64_t heads = kv_heads * any_size(random, 3);
  const std::int64_t head_dim = 16 * any_size(random, 5);
  const std::int64_t rotary = any_bool(random) ? 2 * any_size(random, head_dim / 2) : 0;
  const bool norms = any_bool(random);
  const std::int64_t block_size = any_bool(random) ? 4 : 16;
  const std::int64_t width = (heads + 2 * kv_heads) * head_dim;
  std::vector<std::int32_t> positions{4, 0, 6};
  std::vector<std::int32_t> slots{11, 3, 8};
  auto qkv = random_numbers<float>(random, tokens * width);
  auto cos_sin = random_numbers<float>(random, 7 * rotary);
  auto q_norm = random_numbers<float>(random, norms ? head_dim : 0);
  auto k_norm = random_numbers<float>(random, norms ? head_dim : 0);
  std::vector<A> cache(static_cast<std::size_t>(3 * 2 * kv_heads * block_size * head_dim), rounded_to<A>(7.0F));
  std::vector<A> q(static_cast<std::size_t>(tokens * heads * head_dim));
  ops.rotary_cache_write({.qkv = view_of(qkv, {tokens, width}),
                          .positions = view_of(positions, {tokens}),
                          .slot_mapping = view_of(slots, {tokens}),
                          .cos_sin = view_of(cos_sin, {7, rotary}),
                          .q_norm = view_of(q_norm, {head_dim}),
                          .k_norm = view_of(k_norm, {head_dim}),
                          .kv_cache = view_of(cache, {3, 2, kv_heads, block_size, head_dim}),
                          .q = view_of(q, {tokens, heads, head_dim}),
                          .norm_eps = 1e-6F},
                         pool);
  q.insert(q.end(), cache.begin(), cache.end());
  return q;
}

TEST_CASE_TEMPLATE("norms", A, BFloat16, float) {
  compare_tables(run_norm<A>(&OpTable::rms_norm));
  compare_tables(run_norm<A>(&OpTable::layer_norm));
}

TEST_CASE_TEMPLATE("embedding", A, BFloat16, float) {
  compare_tables(run_embedding<A>);
}

TEST_CASE_TEMPLATE("activations, gates and residuals of linear", A, BFloat16, float) {
  compare_tables(run_epilogues<A>);
}

TEST_CASE_TEMPLATE("rotation, norms of heads, writing K and V", A, BFloat16, float) {
  compare_tables(run_rotary<A>);
}

TEST_CASE("soft cap, add, gathering rows") {
  compare_tables(run_float_ops);
}

TEST_CASE_TEMPLATE("linear, with and without bias, alone and in company", A, BFloat16, float) {
  ThreadPool pool(2);
  for (const std::string& isa : supported_isas()) {
    CAPTURE(isa);
    for (unsigned round = 0; round < kRounds; ++round) {
      CAPTURE(round);
      std::mt19937 random(round);
      const std::int64_t rows = any_size(random, 20);
      const std::int64_t in = any_size(random, 100);
      const std::int64_t outs = any_size(random, 70);
      auto x = random_numbers<A>(random, rows * in);
      auto weight = random_numbers<A>(random, outs * in);
      auto bias = random_numbers<float>(random, any_bool(random) ? outs : 0);
      const TensorView part = view_of(weight, {outs, in});
      const PackedLinear packed = op_table(isa).pack_linear({&part, 1}, kDType<A>, pool);
      Floats together(static_cast<std::size_t>(rows * outs));
      op_table(isa).linear({.x = view_of(x, {rows, in}),
                            .weight = &packed,
                            .bias = view_of(bias, {outs}),
                            .out = view_of(together, {rows, outs})},
                           pool);
      for (std::int64_t r = 0; r < rows; ++r) {
        std::vector<A> row(x.begin() + r * in, x.begin() + (r + 1) * in);
        Floats alone(static_cast<std::size_t>(outs));
        op_table(isa).linear(
            {.x = view_of(row, {1, in}), .weight = &packed, .bias = {}, .out = view_of(alone, {1, outs})}, pool);
        for (std::int64_t n = 0; n < outs; ++n) {
          const float expected = bias.empty() ? alone[n] : alone[n] + bias[n];
          REQUIRE(together[r * outs + n] == expected);
          double exact = 0.0;
          double magnitude = 0.0;
          for (std::int64_t k = 0; k < in; ++k) {
            const double product = double{to_float(row[k])} * double{to_float(weight[n * in + k])};
            exact += product;
            magnitude += std::abs(product);
          }
          REQUIRE(std::abs(alone[n] - exact) <= magnitude * static_cast<double>(in + 2) * 0x1p-24);
        }
      }
    }
  }
}

}  // namespace
}  // namespace fastpaged
