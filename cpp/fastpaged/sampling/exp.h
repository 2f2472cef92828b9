// exp() of numbers <= 0 as plain arithmetic: the same bits in every loop and on every machine.
#pragma once

#include "fastpaged/sampling/lanes.h"

namespace fastpaged {

// z <= 0, -inf included; a NaN gives garbage in its own lane. Relative error below 2^-23 for z >= -87; exactly 0 below
// that, exactly 1 at 0.
inline Lanes exp_nonpositive(const Lanes& z) {
  constexpr float kLowest = -87.0F;  // exp(-87) is nearly the smallest result that is no subnormal
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // few bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 0x1.8p23F;  // adding it leaves the nearest integer in the low bits

  const Lanes x = max_lanes(z, all_lanes(kLowest));
  const Lanes shifted = x * kLog2E + kRound;
  const Lanes n = shifted - kRound;
  const Lanes r = (x - n * kLn2High) - n * kLn2Low;  // |r| <= ln(2) / 2
  // e^r = 1 + r + r^2 g(r); g is the polynomial of degree 4 that makes the largest relative error of e^r smallest
  // (3.1e-9 before rounding, fitted for this file).
  Lanes g = r * 0x1.6a2434p-10F + 0x1.1239e2p-7F;
  g = g * r + 0x1.5558f2p-5F;
  g = g * r + 0x1.555492p-3F;
  g = g * r + 0x1.fffffcp-2F;
  const Lanes mantissa = (g * r * r + r) + 1.0F;
  // The low bits of `shifted` are n: moved into the exponent's place they multiply by 2^n.
  using UintLanes = std::uint32_t __attribute__((vector_size(16)));
  const UintLanes value = reinterpret_cast<UintLanes>(mantissa) + (reinterpret_cast<UintLanes>(shifted) << 23);
  return keep_where(z >= kLowest, reinterpret_cast<Lanes>(value));
}

}  // namespace fastpaged
