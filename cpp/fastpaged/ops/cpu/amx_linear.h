// The AMX linear layer, written once over a set of tile registers (amx_tile.h). 32 rows by two panels at a time:
//
//          B0 (6)   B1 (7)
//   A0 (4) C00 (0)  C01 (1)
//   A1 (5) C10 (2)  C11 (3)
//
// Every output element takes its tiles of 32 k in order, the last one padded with zeros, whatever the number of rows.
#pragma once

#include <xmmintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "fastpaged/ops/cpu/amx_tile.h"
#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/linear_epilogue.h"
#include "fastpaged/ops/cpu/ops.h"
#include "fastpaged/ops/cpu/weight_panels.h"
#include "fastpaged/ops/op_table.h"
#include "fastpaged/ops/params.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu {

constexpr std::int64_t kAmxRows = 2 * kTileRows;
constexpr std::int64_t kAmxPanels = 2;
constexpr std::int64_t kAmxRowsPerTile = 256;    // of work: the weights are read once for these
constexpr std::int64_t kAmxPrefetch = 8 * 1024;  // bytes ahead in a panel

// Up to 32 rows of x against two panels (of which the second may be a repetition of the first).
template <typename Tiles>
class AmxBlock {
 public:
  AmxBlock(const BFloat16* x, std::int64_t x_stride, std::int64_t num_rows, std::int64_t in_features)
      : x_(x),
        x_stride_(x_stride),
        upper_(static_cast<std::uint8_t>(std::min<std::int64_t>(num_rows, kTileRows))),
        lower_(static_cast<std::uint8_t>(num_rows - upper_)),
        whole_tiles_(in_features / kTileDepth),
        rest_(in_features % kTileDepth) {
    // The tile that ends the row is copied: beyond it lies another row, or nothing.
    for (std::int64_t r = 0; rest_ > 0 && r < num_rows; ++r) {
      std::memcpy(tail_[r], x_ + r * x_stride_ + whole_tiles_ * kTileDepth, rest_ * sizeof(BFloat16));
    }
  }

  [[nodiscard]] TileRowCounts rows() const {
    return {upper_, upper_, lower_, lower_, upper_, lower_, kTileRows, kTileRows};
  }

  // sums [32][2][16] = x times the panels. REQUIRES: tiles are configured with rows().
  void multiply(Tiles& tiles, const BFloat16* first, const BFloat16* second, float* sums) const {
    tiles.template zero<0>();
    tiles.template zero<1>();
    if (lower_ > 0) {
      tiles.template zero<2>();
      tiles.template zero<3>();
    }
    for (std::int64_t k = 0; k < whole_tiles_; ++k) {
      step(tiles, x_ + k * kTileDepth, x_stride_, first + k * kTileElements, second + k * kTileElements);
    }
    if (rest_ > 0) {
      step(tiles, tail_[0], kTileDepth, first + whole_tiles_ * kTileElements, second + whole_tiles_ * kTileElements);
    }
    constexpr std::int64_t kStride = kAmxPanels * kTileRowBytes;
    tiles.template store<0>(sums, kStride);
    tiles.template store<1>(sums + kPanelWidth, kStride);
    if (lower_ > 0) {
      float* below = sums + kTileRows * kAmxPanels * kPanelWidth;
      tiles.template store<2>(below, kStride);
      tiles.template store<3>(below + kPanelWidth, kStride);
    }
  }

 private:
  void step(Tiles& tiles, const BFloat16* x, std::int64_t x_stride, const BFloat16* first,
            const BFloat16* second) const {
    prefetch(first);
    prefetch(second);
    const auto x_bytes = x_stride * static_cast<std::int64_t>(sizeof(BFloat16));
    tiles.template load<4>(x, x_bytes);
    tiles.template load<6>(first, kTileRowBytes);
    tiles.template dot<0, 4, 6>();
    tiles.template load<7>(second, kTileRowBytes);
    tiles.template dot<1, 4, 7>();
    if (lower_ > 0) {
      tiles.template load<5>(x + kTileRows * x_stride, x_bytes);
      tiles.template dot<2, 5, 6>();
      tiles.template dot<3, 5, 7>();
    }
  }

  static void prefetch(const BFloat16* tile) {
    for (int row = 0; row < kTileRows; ++row) {
      _mm_prefetch(reinterpret_cast<const char*>(tile) + kAmxPrefetch + row * kTileRowBytes, _MM_HINT_T0);
    }
  }

  const BFloat16* x_;
  std::int64_t x_stride_;
  std::uint8_t upper_;  // rows of the first A tile
  std::uint8_t lower_;  // rows of the second
  std::int64_t whole_tiles_;
  std::int64_t rest_;
  BFloat16 tail_[kAmxRows][kTileDepth] = {};
};

// REQUIRES: params are valid for a weight in panels of bfloat16.
template <typename Tiles>
void amx_linear(const LinearParams& params, ThreadPool& pool) {
  const std::int64_t num_rows = params.x.shape[0];
  const std::int64_t in_features = params.weight->in_features();
  const std::int64_t panels = num_panels(*params.weight);
  const std::int64_t panel_tiles = (panels + kAmxPanels - 1) / kAmxPanels;
  const std::int64_t row_tiles = (num_rows + kAmxRowsPerTile - 1) / kAmxRowsPerTile;
  const auto* weight = reinterpret_cast<const BFloat16*>(params.weight->data());
  for_each_tile(pool, panel_tiles * row_tiles, [&](std::int64_t tile) {
    const std::int64_t panel = tile / row_tiles * kAmxPanels;
    const BFloat16* first = weight + panel * panel_elements<BFloat16>(in_features);
    const BFloat16* second = panel + 1 < panels ? first + panel_elements<BFloat16>(in_features) : first;
    const std::int64_t end = std::min(num_rows, (tile % row_tiles + 1) * kAmxRowsPerTile);
    Tiles tiles;
    TileRowCounts configured{};
    alignas(64) float sums[kAmxRows * kAmxPanels * kPanelWidth];
    alignas(64) float gates[kAmxRows * kPanelWidth];
    for (std::int64_t row = tile % row_tiles * kAmxRowsPerTile; row < end; row += kAmxRows) {
      const std::int64_t rows = std::min(kAmxRows, end - row);
      const AmxBlock<Tiles> block(params.x.row<const BFloat16>(row), params.x.strides[0], rows, in_features);
      if (block.rows() != configured) {
        configured = block.rows();
        tiles.configure(configured);
      }
      block.multiply(tiles, first, second, sums);
      avx512::finish_sums(params, {.sums = sums,
                                   .stride = kAmxPanels * kPanelWidth,
                                   .row = row,
                                   .num_rows = rows,
                                   .panel = panel,
                                   .num_panels = std::min(kAmxPanels, panels - panel),
                                   .gates = gates});
    }
  });
}

// Float32 has no tiles: those layers are the avx512 table's.
template <typename Tiles>
OpTable amx_table_of() {
  OpTable table = avx512::table();
  table.isa = Tiles::kIsaName;
  table.pack_linear = [](std::span<const TensorView> parts, DType dtype, ThreadPool& pool) {
    return pack_panels(parts, dtype, Tiles::kIsaName, /*gated=*/false, pool);
  };
  table.pack_gated_linear = [](std::span<const TensorView> parts, DType dtype, ThreadPool& pool) {
    return pack_panels(parts, dtype, Tiles::kIsaName, /*gated=*/true, pool);
  };
  table.linear = [](const LinearParams& params, ThreadPool& pool) {
    validate(params, Tiles::kIsaName);
    params.weight->dtype() == DType::kBFloat16 ? amx_linear<Tiles>(params, pool)
                                               : avx512::multiply_panels(params, pool);
  };
  return table;
}

}  // namespace fastpaged::cpu
