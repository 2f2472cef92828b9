// GGUF's plain kinds and its blocks of 32: the elements and bytes of a block, and how to read one.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "fastpaged/ops/bfloat16.h"

namespace fastpaged::gguf {

// IEEE half precision, subnormals included: exact in float32. Without a branch: both readings are computed and one is
// masked out, so that a compiler does several at a time.
inline float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1FU;
  const std::uint32_t fraction = half & 0x3FFU;
  const std::uint32_t is_normal = 0U - static_cast<std::uint32_t>(exponent != 0);
  const std::uint32_t rebased = exponent + (exponent == 31 ? 224U : 112U);
  const std::uint32_t normal = (rebased << 23) | (fraction << 13);
  const auto subnormal = std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<int>(fraction)) * 0x1p-24F);
  return std::bit_cast<float>(sign | (normal & is_normal) | (subnormal & ~is_normal));
}

template <typename T>
T load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

inline float load_half(const std::byte* data) {
  return half_to_float(load<std::uint16_t>(data));
}

template <typename Out>
Out convert(float x) {
  if constexpr (std::is_same_v<Out, BFloat16>) {
    return to_bfloat16(x);
  } else {
    return x;
  }
}

// A block of few bits holds few different values: value_of(q) of each q is computed once, then looked up.
template <int kNumValues, typename Out, typename ValueOf>
std::array<Out, kNumValues> table_of(ValueOf value_of) {
  std::array<Out, kNumValues> values;
  for (int q = 0; q < kNumValues; ++q) {
    values[q] = convert<Out>(value_of(static_cast<float>(q)));
  }
  return values;
}

// 16 bytes: the low nibbles are the first half of the block, the high ones the second.
template <typename Out>
void look_up_nibbles(const std::byte* nibbles, const std::array<Out, 16>& values, Out* out) {
  for (int i = 0; i < 16; ++i) {
    const auto byte = std::to_integer<unsigned>(nibbles[i]);
    out[i] = values[byte & 15U];
    out[i + 16] = values[byte >> 4];
  }
}

// The same with a fifth bit for each element, in four bytes of their own.
template <typename Out>
void look_up_five_bits(const std::byte* fifth_bits, const std::byte* nibbles, const std::array<Out, 32>& values,
                       Out* out) {
  const auto fifth = load<std::uint32_t>(fifth_bits);
  for (int i = 0; i < 16; ++i) {
    const auto byte = std::to_integer<unsigned>(nibbles[i]);
    out[i] = values[(byte & 15U) | (((fifth >> i) & 1U) << 4)];
    out[i + 16] = values[(byte >> 4) | (((fifth >> (i + 16)) & 1U) << 4)];
  }
}

struct Q40 {
  static constexpr std::int64_t kElements = 32;
  static constexpr std::int64_t kBytes = 18;  // scale (half), then 16 bytes of nibbles, less 8
  template <typename Out>
  static void read(const std::byte* block, Out* out) {
    const float scale = load_half(block);
    look_up_nibbles(block + 2, table_of<16, Out>([&](float q) { return scale * (q - 8.0F); }), out);
  }
};

struct Q41 {
  static constexpr std::int64_t kElements = 32;
  static constexpr std::int64_t kBytes = 20;  // scale and minimum (half), then 16 bytes of nibbles
  template <typename Out>
  static void read(const std::byte* block, Out* out) {
    const float scale = load_half(block);
    const float minimum = load_half(block + 2);
    look_up_nibbles(block + 4, table_of<16, Out>([&](float q) { return scale * q + minimum; }), out);
  }
};

struct Q50 {
  static constexpr std::int64_t kElements = 32;
  static constexpr std::int64_t kBytes = 22;  // scale (half), 4 bytes of fifth bits, 16 bytes of nibbles, less 16
  template <typename Out>
  static void read(const std::byte* block, Out* out) {
    const float scale = load_half(block);
    look_up_five_bits(block + 2, block + 6, table_of<32, Out>([&](float q) { return scale * (q - 16.0F); }), out);
  }
};

struct Q51 {
  static constexpr std::int64_t kElements = 32;
  static constexpr std::int64_t kBytes = 24;  // scale and minimum (half), 4 bytes of fifth bits, 16 bytes of nibbles
  template <typename Out>
  static void read(const std::byte* block, Out* out) {
    const float scale = load_half(block);
    const float minimum = load_half(block + 2);
    look_up_five_bits(block + 4, block + 8, table_of<32, Out>([&](float q) { return scale * q + minimum; }), out);
  }
};

struct Q80 {
  static constexpr std::int64_t kElements = 32;
  static constexpr std::int64_t kBytes = 34;  // scale (half), then 32 signed bytes
  template <typename Out>
  static void read(const std::byte* block, Out* out) {
    const float scale = load_half(block);
    for (int i = 0; i < 32; ++i) {
      out[i] = convert<Out>(static_cast<float>(load<std::int8_t>(block + 2 + i)) * scale);
    }
  }
};

struct F16 {
  static constexpr std::int64_t kElements = 1;
  static constexpr std::int64_t kBytes = 2;
  template <typename Out>
  static void read(const std::byte* block, Out* out) {
    *out = convert<Out>(load_half(block));
  }
};

struct F32 {
  static constexpr std::int64_t kElements = 1;
  static constexpr std::int64_t kBytes = 4;
  template <typename Out>
  static void read(const std::byte* block, Out* out) {
    *out = convert<Out>(load<float>(block));
  }
};

struct BF16 {
  static constexpr std::int64_t kElements = 1;
  static constexpr std::int64_t kBytes = 2;
  template <typename Out>
  static void read(const std::byte* block, Out* out) {
    *out = convert<Out>(to_float(load<BFloat16>(block)));
  }
};

}  // namespace fastpaged::gguf
