// Whoever calls an op may have changed the floating-point mode of its thread; results must not show it.
#include <doctest/doctest.h>

#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "fastpaged/ops/bfloat16.h"
#include "fastpaged/ops/op_table.h"

namespace fastpaged {
namespace {

struct Results {
  std::vector<float> linear;
  std::vector<BFloat16> norm;
  std::vector<BFloat16> activation;
};

Results run_ops(const OpTable& ops, ThreadPool& pool) {
  constexpr std::int64_t kRows = 3;
  constexpr std::int64_t kSize = 160;
  Results results{std::vector<float>(kRows * kSize), std::vector<BFloat16>(kRows * kSize),
                  std::vector<BFloat16>(kRows * kSize / 2)};
  std::vector<float> x(kRows * kSize);
  std::vector<BFloat16> x_bits(kRows * kSize);
  std::vector<BFloat16> weight(kSize * kSize);
  std::vector<float> norm_weight(kSize, 0.7F);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x_bits[i] = {static_cast<std::uint16_t>(0x3E00 + 37 * i % 511)};
    x[i] = to_float(x_bits[i]) * 1.0009765625F;
  }
  for (std::size_t i = 0; i < weight.size(); ++i) {
    weight[i] = {static_cast<std::uint16_t>((i % 3 == 0 ? 0xBD00 : 0x3D00) + 91 * i % 509)};
  }
  const TensorView weight_view = TensorView::dense(weight.data(), DType::kBFloat16, {kSize, kSize});
  const PackedLinear packed = ops.pack_linear({&weight_view, 1}, DType::kBFloat16, pool);
  ops.linear({.x = TensorView::dense(x_bits.data(), DType::kBFloat16, {kRows, kSize}),
              .weight = &packed,
              .out = TensorView::dense(results.linear.data(), DType::kFloat32, {kRows, kSize})},
             pool);
  ops.rms_norm({.x = TensorView::dense(x.data(), DType::kFloat32, {kRows, kSize}),
                .residual = {},
                .weight = TensorView::dense(norm_weight.data(), DType::kFloat32, {kSize}),
                .out = TensorView::dense(results.norm.data(), DType::kBFloat16, {kRows, kSize}),
                .eps = 1e-5F},
               pool);
  const PackedLinear gated = ops.pack_gated_linear({&weight_view, 1}, DType::kBFloat16, pool);
  ops.linear({.x = TensorView::dense(x_bits.data(), DType::kBFloat16, {kRows, kSize}),
              .weight = &gated,
              .out = TensorView::dense(results.activation.data(), DType::kBFloat16, {kRows, kSize / 2}),
              .activation = Activation::kSilu},
             pool);
  return results;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

TEST_CASE("the caller's rounding mode changes no bit and is given back") {
  ThreadPool pool(2);
  for (const std::string& isa : supported_isas()) {
    CAPTURE(isa);
    const Results usual = run_ops(op_table(isa), pool);
    for (const int mode : {FE_UPWARD, FE_TOWARDZERO}) {
      std::fesetround(mode);
      const Results other = run_ops(op_table(isa), pool);
      const int mode_after = std::fegetround();
      std::fesetround(FE_TONEAREST);
      CHECK(mode_after == mode);
      CHECK(same_bits(usual.linear, other.linear));
      CHECK(same_bits(usual.norm, other.norm));
      CHECK(same_bits(usual.activation, other.activation));
    }
  }
}

}  // namespace
}  // namespace fastpaged
