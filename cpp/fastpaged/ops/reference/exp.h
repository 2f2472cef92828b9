// exp for float32, the same bits everywhere: a libm's may change with the machine.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace fastpaged::reference {

// e^x = 2^n e^r with |r| <= ln(2)/2, e^r by its Taylor polynomial. Within 2 ulp; 0 below -87, infinity above 88.7.
inline float exp(float x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693145752F;  // ln 2 in two parts: n * high is exact
  constexpr float kLn2Low = 1.42860677e-6F;
  if (std::isnan(x)) {
    return x;
  }
  if (x < -87.0F) {
    return 0.0F;
  }
  if (x > 88.7F) {
    return INFINITY;
  }
  const float n = std::nearbyint(x * kLog2E);
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float sum = 1.0F / 5040.0F;
  for (const float coefficient : {1.0F / 720.0F, 1.0F / 120.0F, 1.0F / 24.0F, 1.0F / 6.0F, 0.5F, 1.0F, 1.0F}) {
    sum = sum * r + coefficient;
  }
  // 2^n in two steps, as n = 128 has no float of its own.
  const auto half = static_cast<std::int32_t>(n) / 2;
  const auto rest = static_cast<std::int32_t>(n) - half;
  const auto power = [](std::int32_t k) { return std::bit_cast<float>(static_cast<std::uint32_t>(k + 127) << 23); };
  return sum * power(half) * power(rest);
}

}  // namespace fastpaged::reference
