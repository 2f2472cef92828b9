// The emulated tile instruction against the plain loops of Intel's manual, through the linear op: K = 32 is one
// instruction for each output element, K = 80 is three, the last one padded with zeros.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "fastpaged/ops/bfloat16.h"
#include "fastpaged/ops/op_table.h"

namespace fastpaged {
namespace {

constexpr std::int64_t kDepth = 32;

// One element of C += A * B over 32 k: even and odd k are summed apart, then together, then added to C.
float tile_dot(float c, const BFloat16* a, const BFloat16* b, std::int64_t count) {
  float even = 0.0F;
  float odd = 0.0F;
  for (std::int64_t k = 0; k < kDepth; ++k) {
    float& sum = k % 2 == 0 ? even : odd;
    sum = k < count ? std::fma(to_float(a[k]), to_float(b[k]), sum) : std::fma(0.0F, 0.0F, sum);
  }
  return c + (even + odd);
}

bool supports(const char* isa) {
  const std::vector<std::string> isas = supported_isas();
  return std::find(isas.begin(), isas.end(), isa) != isas.end();
}

// Numbers of very different sizes, so that another order of the sums gives other bits.
std::vector<BFloat16> wild_numbers(std::mt19937& random, std::int64_t count) {
  std::vector<BFloat16> numbers;
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-8, 8);
  for (std::int64_t i = 0; i < count; ++i) {
    numbers.push_back(to_bfloat16(std::ldexp(normal(random), exponent(random))));
  }
  return numbers;
}

TEST_CASE("the emulated AMX linear layer follows the instruction's definition bit by bit") {
  if (!supports("amx_emulated")) {
    MESSAGE("skipped: needs AVX-512 with bfloat16");
    return;
  }
  const OpTable& ops = op_table("amx_emulated");
  ThreadPool pool(1);
  std::mt19937 random(7);
  for (const std::int64_t in_features : {32, 80, 64, 576, 1, 33}) {
    for (const std::int64_t num_rows : {1, 16, 17, 40}) {
      const std::int64_t out_features = 40;
      auto x = wild_numbers(random, num_rows * in_features);
      auto weight = wild_numbers(random, out_features * in_features);
      std::vector<float> out(static_cast<std::size_t>(num_rows * out_features));
      const TensorView weight_view = TensorView::dense(weight.data(), DType::kBFloat16, {out_features, in_features});
      const PackedLinear packed = ops.pack_linear({&weight_view, 1}, DType::kBFloat16, pool);
      ops.linear({.x = TensorView::dense(x.data(), DType::kBFloat16, {num_rows, in_features}),
                  .weight = &packed,
                  .out = TensorView::dense(out.data(), DType::kFloat32, {num_rows, out_features})},
                 pool);
      std::int64_t wrong = 0;
      for (std::int64_t m = 0; m < num_rows; ++m) {
        for (std::int64_t n = 0; n < out_features; ++n) {
          float want = 0.0F;
          for (std::int64_t k = 0; k < in_features; k += kDepth) {
            want = tile_dot(want, &x[m * in_features + k], &weight[n * in_features + k], in_features - k);
          }
          wrong +=
              std::bit_cast<std::uint32_t>(want) == std::bit_cast<std::uint32_t>(out[m * out_features + n]) ? 0 : 1;
        }
      }
      CAPTURE(in_features);
      CAPTURE(num_rows);
      CHECK(wrong == 0);
    }
  }
}

}  // namespace
}  // namespace fastpaged
