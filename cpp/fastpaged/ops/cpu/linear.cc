// Linear layers. Each output element is one accumulator that takes its k in order, in bfloat16 two at a time, from the
// first to the last, whatever the number of rows: blocking only decides who is computed beside whom.
#include <algorithm>

#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/linear_epilogue.h"
#include "fastpaged/ops/cpu/vector.h"
#include "fastpaged/ops/cpu/vector_ops.h"
#include "fastpaged/ops/cpu/weight_panels.h"
#include "fastpaged/ops/element.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {
namespace {

constexpr bool kManyRegisters = kLanes == 16;  // 32 of them; else 16
constexpr std::int64_t kPanelsPerTile = kManyRegisters ? 3 : 2;
constexpr std::int64_t kRowsPerTile = 128;     // read the weights once for these
constexpr std::int64_t kPrefetchBytes = 4096;  // ahead in each panel
constexpr int kVectorsPerPanel = kPanelWidth / kLanes;

// Rows side by side, so that the accumulators and what they are fed from stay in registers.
constexpr int rows_per_block(int panels) {
  return kManyRegisters ? 8 : panels == 1 ? 4 : 1;
}

// All rows of a tile against neighbouring panels.
template <typename A>
struct Block {
  const A* x;
  std::int64_t x_stride;
  const A* weight;  // first panel
  std::int64_t panel_stride;
  std::int64_t in_features;
  const LinearParams* params;
  std::int64_t row;    // first row of the tile
  std::int64_t panel;  // first panel
  float* gates;        // of the tile's rows, as PanelSums has them
};

}  // namespace

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)

static inline Pairs load_weights(const BFloat16* from) {
  return load_pairs(from);
}
static inline Floats load_weights(const float* from) {
  return load(from);
}
static inline Pairs broadcast(const BFloat16* from) {
  return broadcast_pair(from);
}
static inline Floats broadcast(const float* from) {
  return set1(*from);
}
static inline Floats multiply_add(Pairs x, Pairs weights, Floats sum) {
  return dot(x, weights, sum);
}
static inline Floats multiply_add(Floats x, Floats weights, Floats sum) {
  return fma(x, weights, sum);
}

// The k from `weight` on, of which there are kDepthStep, for all rows and panels. x: of the first row.
template <int kRows, int kPanels, typename A>
static inline void step(const A* x, std::int64_t x_stride, const A* weight, std::int64_t panel_stride,
                        Floats (&sums)[kRows][kPanels * kVectorsPerPanel]) {
  constexpr int kVectors = kPanels * kVectorsPerPanel;
  decltype(load_weights(weight)) weights[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const A* panel = weight + v / kVectorsPerPanel * panel_stride;
    weights[v] = load_weights(panel + v % kVectorsPerPanel * kLanes * kDepthStep<A>);
    if (v % kVectorsPerPanel == 0) {
      _mm_prefetch(reinterpret_cast<const char*>(panel) + kPrefetchBytes, _MM_HINT_T0);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const auto value = broadcast(x + r * x_stride);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = multiply_add(value, weights[v], sums[r][v]);
    }
  }
}

template <int kRows, int kPanels, typename A>
static void multiply(const Block<A>& block, std::int64_t row) {
  constexpr int kVectors = kPanels * kVectorsPerPanel;
  constexpr std::int64_t kStep = kDepthStep<A>;
  Floats sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = zero();
    }
  }
  const A* x = block.x + row * block.x_stride;
  const A* weight = block.weight;
  const std::int64_t whole = block.in_features / kStep * kStep;
  for (std::int64_t k = 0; k < whole; k += kStep, weight += kPanelWidth * kStep) {
    step<kRows, kPanels>(x + k, block.x_stride, weight, block.panel_stride, sums);
  }
  if (whole < block.in_features) {  // the last pair is half there: beyond the row lies another, or nothing
    A last[kRows][kStep] = {};
    for (int r = 0; r < kRows; ++r) {
      last[r][0] = x[r * block.x_stride + whole];
    }
    step<kRows, kPanels>(last[0], kStep, weight, block.panel_stride, sums);
  }
  alignas(64) float finished[kRows][kPanels * kPanelWidth];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      store(finished[r] + v * kLanes, sums[r][v]);
    }
  }
  finish_sums(*block.params, {.sums = finished[0],
                              .stride = kPanels * kPanelWidth,
                              .row = block.row + row,
                              .num_rows = kRows,
                              .panel = block.panel,
                              .num_panels = kPanels,
                              .gates = block.gates + row * kPanelWidth});
}

// Rows from `row` on: blocks of kRows, then blocks of fewer for the rest.
template <int kPanels, int kRows = rows_per_block(kPanels), typename A>
static void multiply_rows(const Block<A>& block, std::int64_t num_rows, std::int64_t row = 0) {
  for (; row + kRows <= num_rows; row += kRows) {
    multiply<kRows, kPanels>(block, row);
  }
  if constexpr (kRows > 1) {
    multiply_rows<kPanels, kRows - 1>(block, num_rows, row);
  }
}

// Few rows take several panels at once, to have several streams and sums on their way. With few registers, many rows
// take one panel after the other.
template <typename A>
static void multiply_tile(Block<A> block, std::int64_t panels, std::int64_t num_rows) {
  if constexpr (kManyRegisters) {
    if (panels == 3) {
      return multiply_rows<3>(block, num_rows);
    }
  }
  if (panels == 2 && (kManyRegisters || num_rows <= rows_per_block(2))) {
    return multiply_rows<2>(block, num_rows);
  }
  for (std::int64_t p = 0; p < panels; ++p) {
    multiply_rows<1>(block, num_rows);
    block.weight += block.panel_stride;
    ++block.panel;
  }
}

FASTPAGED_END_TARGET

void multiply_panels(const LinearParams& params, ThreadPool& pool) {
  const std::int64_t num_rows = params.x.shape[0];
  const std::int64_t in_features = params.weight->in_features();
  const std::int64_t panels = num_panels(*params.weight);
  const std::int64_t panels_per_tile = params.weight->gated() ? 2 : kPanelsPerTile;  // gates with their ups
  const std::int64_t panel_tiles = (panels + panels_per_tile - 1) / panels_per_tile;
  const std::int64_t row_tiles = (num_rows + kRowsPerTile - 1) / kRowsPerTile;
  with_element(params.weight->dtype(), [&](auto element) {
    using A = decltype(element);
    const std::int64_t panel_stride = panel_elements<A>(in_features);
    const auto* weight = reinterpret_cast<const A*>(params.weight->data());
    // Row tiles run fastest: the panels of one tile serve them all while they are in the cache.
    for_each_tile(pool, panel_tiles * row_tiles, [&](std::int64_t tile) {
      const std::int64_t panel = tile / row_tiles * panels_per_tile;
      const std::int64_t row = tile % row_tiles * kRowsPerTile;
      alignas(64) float gates[kRowsPerTile * kPanelWidth];
      const Block<A> block{.x = params.x.row<const A>(row),
                           .x_stride = params.x.strides[0],
                           .weight = weight + panel * panel_stride,
                           .panel_stride = panel_stride,
                           .in_features = in_features,
                           .params = &params,
                           .row = row,
                           .panel = panel,
                           .gates = gates};
      multiply_tile(block, std::min(panels_per_tile, panels - panel), std::min(kRowsPerTile, num_rows - row));
    });
  });
}

void linear(const LinearParams& params, ThreadPool& pool) {
  validate(params, kIsaName);
  multiply_panels(params, pool);
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
