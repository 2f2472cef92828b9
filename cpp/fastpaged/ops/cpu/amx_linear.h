// The AMX linear layer, written once over a set of tile registers (amx_tile.h). Up to 16 rows against four panels, or
// 32 rows against two:
//
//          B0   B1   B2   B3  (5, 6, 7, 5)              B0 (6)   B1 (7)
//   A (4)  C0   C1   C2   C3  (0, 1, 2, 3)      A0 (4)  C00 (0)  C01 (1)
//                                               A1 (5)  C10 (2)  C11 (3)
//
// Every output element takes its tiles of 32 k in order, the last one padded with zeros, whatever the number of rows.
//
// Why these shapes. A dot product of full tiles keeps the matrix unit busy for 16 cycles, and a tile is 1 KB.
//   - Up to 16 rows: each tile of weights is used once, 64 bytes per cycle: far beyond any memory. All that counts is
//     that enough of it is on its way, so there are four streams, fetched well ahead into the second cache (the line
//     buffers of the first are too few), and four sums, none of which waits for the dot product before it.
//   - More rows: two tiles of each kind feed four dot products, 4 KB in 64 cycles, what the second cache delivers. So
//     everything but the weights' first visit must come from there: the rows, laid out as tiles (in their own memory,
//     rows a power of two apart would push each other out of the first cache), are as many as fill half of it, and the
//     weights pass by once for all of them. 256 rows use a tile of weights for 16 * 16 cycles, 4 bytes per cycle. The
//     blocks of rows share out between them the fetching of the two panels that follow.
// The tiles are configured once per tile of work: a configuration serves both shapes.
#pragma once

#include <xmmintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "fastpaged/ops/cpu/amx_tile.h"
#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/linear_epilogue.h"
#include "fastpaged/ops/cpu/ops.h"
#include "fastpaged/ops/cpu/row_scratch.h"
#include "fastpaged/ops/cpu/weight_panels.h"
#include "fastpaged/ops/op_table.h"
#include "fastpaged/ops/params.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu {

constexpr std::int64_t kAmxRows = 2 * kTileRows;
constexpr std::int64_t kAmxMaxPanels = 4;
constexpr std::int64_t kAmxRowBytes = 1024 * 1024;  // of a tile of work: half of the second cache
constexpr std::int64_t kAmxMinRows = 64;
constexpr std::int64_t kAmxMaxRows = 256;
constexpr std::int64_t kAmxAhead = 8;                        // tiles of a panel, with few rows
constexpr std::int64_t kAmxManyPanels = 32 * kAmxMaxPanels;  // that many threads can share in fours

// The rows of x as A tiles: [blocks of 16 rows][tiles of 32 k][16 rows][32 k], zero where there are no more.
inline void pack_amx_rows(const TensorView& x, std::int64_t first_row, std::int64_t num_rows, BFloat16* to) {
  const std::int64_t in_features = x.shape[1];
  const std::int64_t depth = (in_features + kTileDepth - 1) / kTileDepth;
  const std::int64_t padded_rows = (num_rows + kTileRows - 1) / kTileRows * kTileRows;
  for (std::int64_t r = 0; r < padded_rows; ++r) {
    BFloat16* row = to + (r / kTileRows * depth * kTileRows + r % kTileRows) * kTileDepth;
    for (std::int64_t t = 0; t < depth; ++t, row += kTileElements) {
      const std::int64_t count = r < num_rows ? std::min(kTileDepth, in_features - t * kTileDepth) : 0;
      if (count > 0) {
        std::memcpy(row, x.row<const BFloat16>(first_row + r) + t * kTileDepth, count * sizeof(BFloat16));
      }
      std::memset(row + count, 0, (kTileDepth - count) * sizeof(BFloat16));
    }
  }
}

// A linear call as its tiles see it.
template <typename Tiles>
class AmxProblem {
 public:
  // REQUIRES: params are valid for a weight in panels of bfloat16, and there are rows.
  explicit AmxProblem(const LinearParams& params)
      : params_(params),
        num_rows_(params.x.shape[0]),
        depth_((params.x.shape[1] + kTileDepth - 1) / kTileDepth),
        panels_(num_panels(*params.weight)),
        panels_per_tile_(num_rows_ <= kTileRows && panels_ < kAmxManyPanels ? 2 : kAmxMaxPanels),
        panel_tiles_((panels_ + panels_per_tile_ - 1) / panels_per_tile_),
        rows_per_tile_(
            std::clamp(kAmxRowBytes / (depth_ * kTileRowBytes) / kAmxRows * kAmxRows, kAmxMinRows, kAmxMaxRows)) {}

  // Panels run fastest: the rows that a thread has laid out serve all its tiles, whose weights follow each other.
  [[nodiscard]] std::int64_t num_tiles() const {
    return (num_rows_ + rows_per_tile_ - 1) / rows_per_tile_ * panel_tiles_;
  }

  void run(std::int64_t tile) const {
    const std::int64_t row = tile / panel_tiles_ * rows_per_tile_;
    const std::int64_t rows = std::min(rows_per_tile_, num_rows_ - row);
    const std::int64_t panel = tile % panel_tiles_ * panels_per_tile_;
    const std::int64_t panels = std::min(panels_per_tile_, panels_ - panel);
    const BFloat16* x = packed(row, rows);
    Tiles tiles;
    const auto m = static_cast<std::uint8_t>(std::min<std::int64_t>(rows, kTileRows));
    tiles.configure({m, m, m, m, m, kTileRows, kTileRows, kTileRows});
    alignas(64) float gates[kAmxMaxRows * kPanelWidth];
    if (rows <= kTileRows) {
      const PanelSums sums{.row = row, .num_rows = rows, .panel = panel, .num_panels = panels, .gates = gates};
      panels_per_tile_ == 2 ? few_rows<2>(tiles, x, sums) : few_rows<4>(tiles, x, sums);
      return;
    }
    for (std::int64_t p = 0; p < panels; p += 2) {
      const PanelSums sums{.row = row,
                           .num_rows = rows,
                           .panel = panel + p,
                           .num_panels = std::min<std::int64_t>(2, panels - p),
                           .gates = gates};
      many_rows(tiles, x, sums);
    }
  }

 private:
  [[nodiscard]] const BFloat16* packed(std::int64_t row, std::int64_t rows) const {
    const std::int64_t blocks = (rows + kTileRows - 1) / kTileRows;
    const auto num_bytes = blocks * depth_ * kTileElements * static_cast<std::int64_t>(sizeof(BFloat16));
    return static_cast<const BFloat16*>(RowScratch::of_this_thread().get(call_, row, num_bytes, [&](void* memory) {
      pack_amx_rows(params_.x, row, rows, static_cast<BFloat16*>(memory));
    }));
  }

  // Panel p of the block; beyond the last one, that again.
  [[nodiscard]] const BFloat16* panel(const PanelSums& block, std::int64_t p) const {
    const auto* weight = reinterpret_cast<const BFloat16*>(params_.weight->data());
    return weight + (block.panel + std::min(p, block.num_panels - 1)) * depth_ * kTileElements;
  }

  template <int kPanels>
  void few_rows(Tiles& tiles, const BFloat16* x, PanelSums block) const {
    const BFloat16* const panels[4] = {panel(block, 0), panel(block, 1), panel(block, 2), panel(block, 3)};
    zero<kPanels == 4>(tiles);
    for (std::int64_t k = 0; k < depth_; ++k) {
      // Behind the end of a panel lies the next one, which is being read already: there, the panels that follow.
      const std::int64_t ahead = kAmxAhead + (k + kAmxAhead < depth_ ? 0 : (kPanels - 1) * depth_);
      for (int p = 0; p < kPanels; ++p) {
        prefetch(panels[p] + (k + ahead) * kTileElements, 0, kTileRows);
      }
      const std::int64_t at = k * kTileElements;
      tiles.template load<4>(x + at, kTileRowBytes);
      multiply<0, 4, 5>(tiles, panels[0] + at);
      multiply<1, 4, 6>(tiles, panels[1] + at);
      if constexpr (kPanels == 4) {
        multiply<2, 4, 7>(tiles, panels[2] + at);
        multiply<3, 4, 5>(tiles, panels[3] + at);
      }
    }
    alignas(64) float sums[kTileRows * kPanels * kPanelWidth];
    constexpr std::int64_t kStride = kPanels * kTileRowBytes;
    tiles.template store<0>(sums, kStride);
    tiles.template store<1>(sums + kPanelWidth, kStride);
    if constexpr (kPanels == 4) {
      tiles.template store<2>(sums + 2 * kPanelWidth, kStride);
      tiles.template store<3>(sums + 3 * kPanelWidth, kStride);
    }
    block.sums = sums;
    block.stride = kPanels * kPanelWidth;
    avx512::finish_sums(params_, block);
  }

  // All rows of the tile against two panels.
  void many_rows(Tiles& tiles, const BFloat16* x, const PanelSums& all) const {
    const std::int64_t blocks = (all.num_rows + kAmxRows - 1) / kAmxRows;
    for (std::int64_t i = 0; i < blocks; ++i, x += 2 * depth_ * kTileElements) {
      const std::int64_t rows = std::min(kAmxRows, all.num_rows - i * kAmxRows);
      const int first = static_cast<int>(kTileRows * i / blocks);
      const int last = static_cast<int>(kTileRows * (i + 1) / blocks);
      alignas(64) float sums[kAmxRows * 2 * kPanelWidth];
      if (rows > kTileRows) {
        block_of_rows<true>(tiles, x, panel(all, 0), panel(all, 1), first, last, sums);
      } else {
        block_of_rows<false>(tiles, x, panel(all, 0), panel(all, 1), first, last, sums);
      }
      avx512::finish_sums(params_, {.sums = sums,
                                    .stride = 2 * kPanelWidth,
                                    .row = all.row + i * kAmxRows,
                                    .num_rows = rows,
                                    .panel = all.panel,
                                    .num_panels = all.num_panels,
                                    .gates = all.gates + i * kAmxRows * kPanelWidth});
    }
  }

  // sums [32][2][16], of which the lower half is there if kLower. [first, last): the rows to fetch of each tile of the
  // panels that follow.
  template <bool kLower>
  void block_of_rows(Tiles& tiles, const BFloat16* x, const BFloat16* panel0, const BFloat16* panel1, int first,
                     int last, float* sums) const {
    const std::int64_t next = 2 * depth_ * kTileElements;
    const BFloat16* lower = x + depth_ * kTileElements;
    zero<kLower>(tiles);
    for (std::int64_t at = 0; at < depth_ * kTileElements; at += kTileElements) {
      prefetch(panel0 + at + next, first, last);
      prefetch(panel1 + at + next, first, last);
      tiles.template load<4>(x + at, kTileRowBytes);
      multiply<0, 4, 6>(tiles, panel0 + at);
      multiply<1, 4, 7>(tiles, panel1 + at);
      if constexpr (kLower) {
        tiles.template load<5>(lower + at, kTileRowBytes);
        tiles.template dot<2, 5, 6>();
        tiles.template dot<3, 5, 7>();
      }
    }
    constexpr std::int64_t kStride = 2 * kTileRowBytes;
    tiles.template store<0>(sums, kStride);
    tiles.template store<1>(sums + kPanelWidth, kStride);
    if constexpr (kLower) {
      tiles.template store<2>(sums + kTileRows * 2 * kPanelWidth, kStride);
      tiles.template store<3>(sums + (kTileRows * 2 + 1) * kPanelWidth, kStride);
    }
  }

  template <bool kAllFour>
  static void zero(Tiles& tiles) {
    tiles.template zero<0>();
    tiles.template zero<1>();
    if constexpr (kAllFour) {
      tiles.template zero<2>();
      tiles.template zero<3>();
    }
  }

  template <int kC, int kA, int kB>
  static void multiply(Tiles& tiles, const BFloat16* weights) {
    tiles.template load<kB>(weights, kTileRowBytes);
    tiles.template dot<kC, kA, kB>();
  }

  static void prefetch(const BFloat16* tile, int first, int last) {
    for (int row = first; row < last; ++row) {
      _mm_prefetch(reinterpret_cast<const char*>(tile) + row * kTileRowBytes, _MM_HINT_T1);
    }
  }

  const LinearParams& params_;
  const std::uint64_t call_ = RowScratch::next_call();
  std::int64_t num_rows_;
  std::int64_t depth_;  // tiles
  std::int64_t panels_;
  std::int64_t panels_per_tile_;
  std::int64_t panel_tiles_;
  std::int64_t rows_per_tile_;
};

template <typename Tiles>
void amx_linear(const LinearParams& params, ThreadPool& pool) {
  if (params.x.shape[0] == 0) {
    return;
  }
  const AmxProblem<Tiles> problem(params);
  for_each_tile(pool, problem.num_tiles(), [&](std::int64_t tile) { problem.run(tile); });
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
