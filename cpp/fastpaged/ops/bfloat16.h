// bfloat16 <-> float32 in portable C++.
#pragma once

#include <bit>
#include <cstdint>

#include "fastpaged/base/tensor_view.h"

namespace fastpaged {

inline float to_float(BFloat16 x) {
  return std::bit_cast<float>(std::uint32_t{x.bits} << 16);
}

// To the nearest, ties to even; a NaN stays a (quiet) NaN.
inline BFloat16 to_bfloat16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
  return {static_cast<std::uint16_t>((is_nan ? bits | 0x00400000U : rounded) >> 16)};
}

}  // namespace fastpaged
