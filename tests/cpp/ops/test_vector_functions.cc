// The functions under the kernels, seen through the ops: over all magnitudes, against double precision.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "ops/table_runs.h"

namespace fastpaged {
namespace {

// Floats of every exponent and sign, of random and of extreme mantissas.
Floats floats_of_every_magnitude() {
  std::mt19937 random(3);
  Floats floats;
  for (std::uint32_t top = 0; top < 512; ++top) {
    for (const std::uint32_t mantissa : {0U, 1U, 0x7FFFFFU, 0x400000U}) {
      floats.push_back(std::bit_cast<float>(top << 23 | mantissa));
    }
    for (int i = 0; i < 61; ++i) {
      floats.push_back(std::bit_cast<float>(top << 23 | static_cast<std::uint32_t>(random() & 0x7FFFFFU)));
    }
  }
  return floats;
}

// At the end of a linear layer of zeros, as its biases.
Floats activated(const OpTable& ops, Activation activation, Floats x) {
  ThreadPool pool(1);
  Floats out(x.size());
  Floats weight(x.size());
  Floats zero(1);
  const auto size = static_cast<std::int64_t>(x.size());
  const TensorView part = view_of(weight, {size, 1});
  const PackedLinear packed = ops.pack_linear({&part, 1}, DType::kFloat32, pool);
  ops.linear({.x = view_of(zero, {1, 1}),
              .weight = &packed,
              .bias = view_of(x, {size}),
              .out = view_of(out, {1, size}),
              .activation = activation},
             pool);
  return out;
}

void check_function(const char* name, const std::function<Floats(const OpTable&, const Floats&)>& run,
                    const std::function<double(double)>& exact, double relative, double absolute) {
  CAPTURE(name);
  const Floats x = floats_of_every_magnitude();
  for (const std::string& isa : fast_isas()) {
    CAPTURE(isa);
    const Floats got = run(op_table(isa), x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      CAPTURE(x[i]);
      const double want = exact(double{x[i]});
      if (std::isnan(x[i])) {
        REQUIRE(std::isnan(got[i]));
      } else if (std::isfinite(want) && std::abs(want) < double{std::numeric_limits<float>::max()}) {
        const double flushed = std::abs(want) < 0x1p-125 ? 0x1p-125 : 0.0;
        REQUIRE(std::abs(got[i] - want) <= relative * std::abs(want) + absolute + flushed);
      }
    }
  }
}

TEST_CASE("activations and tanh of every magnitude are right to a few units in the last place") {
  const auto activation = [](Activation which) {
    return [which](const OpTable& ops, const Floats& x) { return activated(ops, which, x); };
  };
  const auto soft_capped = [](const OpTable& ops, Floats x) {
    ThreadPool pool(1);
    ops.soft_cap({.x = view_of(x, {1, static_cast<std::int64_t>(x.size())}), .cap = 1.0F}, pool);
    return x;
  };
  const double ulp = 0x1p-23;
  check_function("tanh", soft_capped, [](double x) { return std::tanh(x); }, 3 * ulp, 0.0);
  // e^126 is infinity in float32, and x / infinity is 0.
  const auto silu = [](double x) { return x / (1.0 + std::exp(-x)); };
  check_function("silu", activation(Activation::kSilu), silu, 4 * ulp, 1e-30);
  const auto relu = [](double x) { return x < 0.0 ? 0.0 : x; };
  check_function("relu", activation(Activation::kRelu), relu, 0.0, 0.0);
  // Where 1 + erf or 1 + tanh loses its digits, those of x / 2 times an error of 1.5e-7 are left.
  const auto gelu = [](double x) { return std::isinf(x) ? INFINITY : 0.5 * x * std::erfc(-x / std::sqrt(2.0)); };
  const auto gelu_tanh = [](double x) {
    return std::isinf(x) ? INFINITY : 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
  };
  check_function("gelu", activation(Activation::kGelu), gelu, 4 * ulp, 6e-7);
  check_function("gelu_tanh", activation(Activation::kGeluTanh), gelu_tanh, 8 * ulp, 6e-7);
}

TEST_CASE("to bfloat16: nearest, ties to even; NaN stays a quiet NaN, denormals become zeros of their sign") {
  ThreadPool pool(1);
  std::mt19937 random(5);
  Floats x;
  for (std::uint32_t top = 0; top < 0x10000; ++top) {
    for (const std::uint32_t low :
         {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU, static_cast<unsigned>(random()) >> 16}) {
      x.push_back(std::bit_cast<float>(top << 16 | low));
    }
  }
  const auto size = static_cast<std::int64_t>(x.size());
  for (const std::string& isa : fast_isas()) {
    CAPTURE(isa);
    // Values go to the cache as they are: no head is rotated.
    std::vector<BFloat16> q(static_cast<std::size_t>(size));
    std::vector<BFloat16> cache(static_cast<std::size_t>(2 * size));
    std::vector<std::int32_t> zeros(static_cast<std::size_t>(size / 64), 0);
    std::vector<std::int32_t> slots(zeros.size());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      slots[i] = static_cast<std::int32_t>(i);
    }
    const std::int64_t tokens = size / 64;
    Floats qkv;
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (int part = 0; part < 3; ++part) {
        qkv.insert(qkv.end(), x.begin() + t * 64, x.begin() + (t + 1) * 64);
      }
    }
    op_table(isa).rotary_cache_write({.qkv = view_of(qkv, {tokens, 192}),
                                      .positions = view_of(zeros, {tokens}),
                                      .slot_mapping = view_of(slots, {tokens}),
                                      .cos_sin = {},
                                      .q_norm = {},
                                      .k_norm = {},
                                      .kv_cache = view_of(cache, {tokens, 2, 1, 1, 64}),
                                      .q = view_of(q, {tokens, 1, 64})},
                                     pool);
    for (std::int64_t i = 0; i < size; ++i) {
      const bool tiny = !std::isnan(x[i]) && std::abs(x[i]) < std::numeric_limits<float>::min();
      const auto want = tiny ? to_bfloat16(std::copysign(0.0F, x[i])) : to_bfloat16(x[i]);
      REQUIRE(q[i].bits == want.bits);
      REQUIRE(cache[i / 64 * 128 + 64 + i % 64].bits == want.bits);
    }
  }
}

}  // namespace
}  // namespace fastpaged
