// GGUF's blocks of 256, "K": runs of 32 or 16 elements with small integer scales of their own, under one scale in half.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fastpaged/ops/gguf_blocks.h"

namespace fastpaged::gguf {

// Six bits each, of one run of 32.
struct RunScale {
  float scale;
  float minimum;
};

// 12 bytes hold 8 scales and 8 minima. Those of runs 0 to 3 are the low six bits of bytes 0 to 3 and of bytes 4 to 7;
// those of runs 4 to 7 have their low four bits in bytes 8 to 11, and the two bits left over in bytes 0 to 7 on top.
inline RunScale unpack_run_scale(const std::byte* packed, int run) {
  const auto byte = [&](int i) { return std::to_integer<unsigned>(packed[i]); };
  if (run < 4) {
    return {static_cast<float>(byte(run) & 63U), static_cast<float>(byte(run + 4) & 63U)};
  }
  return {static_cast<float>((byte(run + 4) & 15U) | ((byte(run - 4) >> 6) << 4)),
          static_cast<float>((byte(run + 4) >> 4) | ((byte(run) >> 6) << 4))};
}

struct Q4K {
  static constexpr std::int64_t kElements = 256;
  static constexpr std::int64_t kBytes = 144;  // scale and minimum (half), 12 bytes of runs, 128 bytes of nibbles
  // Two runs share 32 bytes: the low nibbles are the first, the high ones the second.
  template <typename Out>
  static void read(const std::byte* block, Out* out) {
    const float scale = load_half(block);
    const float minimum = load_half(block + 2);
    for (int run = 0; run < 8; ++run) {
      const RunScale own = unpack_run_scale(block + 4, run);
      const float step = scale * own.scale;
      const float offset = minimum * own.minimum;
      const auto values = table_of<16, Out>([&](float q) { return step * q - offset; });
      const std::byte* nibbles = block + 16 + 32 * (run / 2);
      const int shift = 4 * (run % 2);
      for (int i = 0; i < 32; ++i) {
        out[32 * run + i] = values[(std::to_integer<unsigned>(nibbles[i]) >> shift) & 15U];
      }
    }
  }
};

struct Q5K {
  static constexpr std::int64_t kElements = 256;
  static constexpr std::int64_t kBytes = 176;  // as Q4_K, with 32 bytes of fifth bits before the nibbles
  // Bit r of each of the 32 bytes belongs to run r.
  template <typename Out>
  static void read(const std::byte* block, Out* out) {
    const float scale = load_half(block);
    const float minimum = load_half(block + 2);
    for (int run = 0; run < 8; ++run) {
      const RunScale own = unpack_run_scale(block + 4, run);
      const float step = scale * own.scale;
      const float offset = minimum * own.minimum;
      const std::byte* nibbles = block + 48 + 32 * (run / 2);
      const int shift = 4 * (run % 2);
      for (int i = 0; i < 32; ++i) {
        const unsigned fifth = (std::to_integer<unsigned>(block[16 + i]) >> run) & 1U;
        const unsigned q = ((std::to_integer<unsigned>(nibbles[i]) >> shift) & 15U) | (fifth << 4);
        out[32 * run + i] = convert<Out>(step * static_cast<float>(static_cast<int>(q)) - offset);
      }
    }
  }
};

struct Q6K {
  static constexpr std::int64_t kElements = 256;
  // 128 bytes of nibbles, 64 bytes of upper bit pairs, 16 signed scales of runs of 16, scale (half); less 32.
  static constexpr std::int64_t kBytes = 210;
  // Each half of the block is four rows of 32. Rows 0 and 2 share 32 bytes of nibbles, low and high, and so do rows 1
  // and 3; all four share 32 bytes of pairs, row 0 in the lowest bits.
  template <typename Out>
  static void read(const std::byte* block, Out* out) {
    const float scale = load_half(block + 208);
    for (int row = 0; row < 8; ++row) {
      const int half = row / 4;
      const std::byte* nibbles = block + 64 * half + 32 * (row % 2);
      const std::byte* pairs = block + 128 + 32 * half;
      const int nibble_shift = 4 * (row % 4 / 2);
      const int pair_shift = 2 * (row % 4);
      for (int run = 0; run < 2; ++run) {
        const float step = scale * static_cast<float>(load<std::int8_t>(block + 192 + 2 * row + run));
        for (int i = 16 * run; i < 16 * run + 16; ++i) {
          const unsigned low = (std::to_integer<unsigned>(nibbles[i]) >> nibble_shift) & 15U;
          const unsigned high = (std::to_integer<unsigned>(pairs[i]) >> pair_shift) & 3U;
          out[32 * row + i] = convert<Out>(step * static_cast<float>(static_cast<int>(low | (high << 4)) - 32));
        }
      }
    }
  }
};

}  // namespace fastpaged::gguf
