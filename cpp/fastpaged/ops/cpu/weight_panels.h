// Weight panels: the packed weights of the x86 linear layers. A panel is 16 outputs, one stream to read.
//
//   bfloat16  [N/16 panels][K/32 tiles][16 pairs of k][16 n][2 k], zero-padded in N and K. A pair of k for 16 outputs
//             is one 64-byte vector; 16 of them are one 1 KB AMX tile.
//   float32   [N/16 panels][K][16 n], zero-padded in N
//
// Which outputs a panel has, of a plain and of a gated weight: panel_outputs.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "fastpaged/base/tensor_view.h"
#include "fastpaged/base/thread_pool.h"
#include "fastpaged/ops/packed_linear.h"
#include "fastpaged/ops/panel_outputs.h"

namespace fastpaged::cpu {

// OpTable::weight_layout: to be counted up with every change of the bytes that pack_panels makes.
constexpr const char* kWeightLayout = "panels16x32-1";

constexpr std::int64_t kPanelWidth = kOutputsPerPanel;
constexpr std::int64_t kTileDepth = 32;  // k
constexpr std::int64_t kTileElements = kPanelWidth * kTileDepth;

// k side by side in memory, for each output.
template <typename A>
constexpr std::int64_t kDepthStep = std::is_same_v<A, BFloat16> ? 2 : 1;

inline std::int64_t num_panels(const PackedLinear& weight) {
  return num_panels_of(weight.out_features(), weight.gated());
}
template <typename A>
constexpr std::int64_t panel_elements(std::int64_t in_features) {
  if constexpr (std::is_same_v<A, BFloat16>) {
    return (in_features + kTileDepth - 1) / kTileDepth * kTileElements;
  } else {
    return in_features * kPanelWidth;
  }
}

// Of a whole weight. REQUIRES: as OpTable::packed_bytes.
std::size_t bytes_of_panels(std::int64_t out_features, std::int64_t in_features, DType dtype, bool gated);

PackedLinear pack_panels(std::span<const TensorView> parts, DType dtype, const char* isa, bool gated, ThreadPool& pool);

}  // namespace fastpaged::cpu
