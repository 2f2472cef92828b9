// Lanes: four float32 side by side, in the vector registers every target has (SSE2, NEON).
//
// GCC's and Clang's vector types, no intrinsics: arithmetic and comparisons act lane by lane, each the IEEE operation
// it would be alone, so that the bits do not depend on how a compiler vectorises a loop.
#pragma once

#include <cstdint>
#include <cstring>

namespace fastpaged {

inline constexpr int kLanes = 4;

using Lanes = float __attribute__((vector_size(16)));
using IntLanes = std::int32_t __attribute__((vector_size(16)));  // also a comparison's result: -1 is true, 0 false

inline Lanes load_lanes(const float* values) {
  Lanes lanes;
  std::memcpy(&lanes, values, sizeof(lanes));
  return lanes;
}

inline Lanes all_lanes(float value) {
  return Lanes{value, value, value, value};
}

// Of two numbers the smaller; b if either is a NaN.
inline Lanes min_lanes(const Lanes& a, const Lanes& b) {
  return a < b ? a : b;
}

inline bool any_lane(const IntLanes& condition) {
  return (condition[0] | condition[1] | condition[2] | condition[3]) != 0;
}

}  // namespace fastpaged
