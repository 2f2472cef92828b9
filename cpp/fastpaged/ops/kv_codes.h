// 8-bit KV: what a code is worth, and which code a number gets. A key or a value, the D numbers x of one token and KV
// head, is kept as one float32 scale and D one-byte codes, from that vector alone; it is read as the activation dtype's
// rounding of the float32 product value(code) * scale.
//
//   dtype     values of codes                       largest  |x - value * scale| is at most, but for 2^-22 of itself
//   int8      -127 .. 127                               127  scale / 2
//   fp8_e4m3  1 sign, 4 exponent, 3 mantissa bits       448  the larger of |x| 2^-4 and scale 2^-10
//   fp8_e5m2  1 sign, 5 exponent, 2 mantissa bits     57344  the larger of |x| 2^-3 and scale 2^-17
//
//   scale = amax / largest, with amax the largest |x|, at most 2^127, so that no finite number is read as infinite; 0
//           where amax is below 2^-100, as with zeros: then all codes are 0. Of fp8 it is that of amax / 7/7, 6/7, 5/7
//           and 4/7 of the largest (codes all, so that amax itself is kept to the last bit) with the least sum of
//           squared errors, the first of equals: by these a quarter less than by the first alone
//   code  = that of the value nearest to x / scale, ties to the even code, at most the largest; fp8 keeps signs of zero
//   NaN or infinity among x: the scale is NaN, and codes are 0, so that all that is read is NaN
//
// Codes that would be infinity or NaN are never written: fp8_e5m2's beyond 0x7B, and -128. fp8_e4m3's 0x7F is 480.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "fastpaged/base/tensor_view.h"

namespace fastpaged {

constexpr float kLeastKVMagnitude = 0x1p-100F;  // below it, a vector counts as zeros
constexpr float kMostKVMagnitude = 0x1p127F;    // above it, numbers are cut off

// "fp8_e4m3", "fp8_e5m2", "int8". Throws std::invalid_argument naming what is allowed.
DType kv_code_dtype(std::string_view name);

// Below, REQUIRES: is_kv_code(dtype).
constexpr float largest_code(DType dtype) {
  return dtype == DType::kInt8 ? 127.0F : dtype == DType::kFp8E4M3 ? 448.0F : 57344.0F;
}
// Of every code.
const std::array<float, 256>& values_of_codes(DType dtype);
inline float value_of_code(DType dtype, std::uint8_t code) {
  return values_of_codes(dtype)[code];
}
// What amax may become in fp8, and by what errors then count, in units of codes, beside those where it is the largest.
struct KVScaleChoice {
  float amax_code = 0.0F;
  float weight = 0.0F;
};
constexpr std::array<KVScaleChoice, 4> fp8_scale_choices(DType dtype) {
  const float seventh = largest_code(dtype) / 7.0F;
  return {{{7.0F * seventh, 1.0F},
           {6.0F * seventh, 49.0F / 36.0F},
           {5.0F * seventh, 49.0F / 25.0F},
           {4.0F * seventh, 49.0F / 16.0F}}};
}
// Squared errors are added up in so many sums, each of numbers that far apart, and these in order.
constexpr int kKVErrorSums = 16;
// REQUIRES: x is no NaN.
std::uint8_t nearest_code(DType dtype, float x);

// The codes of a vector of `size` numbers, and its scale, which is returned.
float quantize(DType dtype, const float* x, std::int64_t size, std::uint8_t* codes);

// Raw memory as params take it: from bytes [..., block_size * (head_dim + 4)], of dtype `dtype`, to codes
// [..., block_size, head_dim]. Throws std::invalid_argument naming `argument` for another last axis, or memory that is
// not aligned to a scale.
TensorView kv_code_view(const char* argument, const TensorView& bytes, std::int64_t head_dim);

}  // namespace fastpaged
