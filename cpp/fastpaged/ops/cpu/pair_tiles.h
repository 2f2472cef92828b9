// PairTiles: the packed weight of the AVX-512 and AMX linear layers.
//
// [N/16 panels][K/32 tiles][16 pairs of k][16 n][2 k] bfloat16, zero-padded in N and K. A pair of k for 16 outputs is
// one 64-byte vector; 16 of them are one 1 KB AMX tile; a panel is one stream to read.
#pragma once

#include <cstdint>
#include <span>

#include "fastpaged/base/tensor_view.h"
#include "fastpaged/base/thread_pool.h"
#include "fastpaged/ops/packed_linear.h"

namespace fastpaged::cpu {

constexpr std::int64_t kPanelWidth = 16;  // outputs
constexpr std::int64_t kTileDepth = 32;   // k
constexpr std::int64_t kPairVector = 32;  // bfloat16 elements of one pair of k for a panel
constexpr std::int64_t kTileElements = 512;

inline std::int64_t num_panels(std::int64_t out_features) {
  return (out_features + kPanelWidth - 1) / kPanelWidth;
}
inline std::int64_t num_depth_tiles(std::int64_t in_features) {
  return (in_features + kTileDepth - 1) / kTileDepth;
}
inline std::int64_t panel_elements(std::int64_t in_features) {
  return num_depth_tiles(in_features) * kTileElements;
}

PackedLinear pack_pair_tiles(std::span<const TensorView> parts, DType dtype, const char* isa, ThreadPool& pool);

}  // namespace fastpaged::cpu
