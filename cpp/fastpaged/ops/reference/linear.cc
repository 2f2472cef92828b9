#include <algorithm>
#include <array>
#include <vector>

#include "fastpaged/ops/bfloat16.h"
#include "fastpaged/ops/reference/for_each_tile.h"
#include "fastpaged/ops/reference/ops.h"
#include "fastpaged/ops/validate.h"
#include "fastpaged/ops/weight_rows.h"

namespace fastpaged::reference {
namespace {

// Outputs side by side in memory: [N/16][K][16], zeros after the last of N. A compiler makes vectors of the inner loop.
constexpr std::int64_t kWidth = 16;
constexpr std::int64_t kRowsPerTile = 64;

std::int64_t num_panels(std::int64_t out_features) {
  return (out_features + kWidth - 1) / kWidth;
}

// out[r][0..width) for kRows rows of x: one accumulator per element, k in order.
template <int kRows>
void multiply_panel(const BFloat16* panel, const TensorView& x, std::int64_t first_row, const TensorView& out,
                    std::int64_t column) {
  std::array<std::array<float, kWidth>, kRows> sums{};
  std::array<const BFloat16*, kRows> rows;
  for (int r = 0; r < kRows; ++r) {
    rows[r] = x.row<const BFloat16>(first_row + r);
  }
  for (std::int64_t k = 0; k < x.shape[1]; ++k) {
    std::array<float, kWidth> weights;
    for (int j = 0; j < kWidth; ++j) {
      weights[j] = to_float(panel[k * kWidth + j]);
    }
    for (int r = 0; r < kRows; ++r) {
      const float value = to_float(rows[r][k]);
      for (int j = 0; j < kWidth; ++j) {
        sums[r][j] += value * weights[j];
      }
    }
  }
  const std::int64_t width = std::min(kWidth, out.shape[1] - column);
  for (int r = 0; r < kRows; ++r) {
    std::copy_n(sums[r].begin(), width, out.row<float>(first_row + r) + column);
  }
}

}  // namespace

PackedLinear pack_linear(std::span<const TensorView> parts, ThreadPool& pool) {
  const WeightRows weight(parts);
  const std::int64_t in_features = weight.row_size();
  const std::int64_t panel_size = in_features * kWidth;
  PackedLinear packed(weight.num_rows(), in_features,
                      static_cast<std::size_t>(num_panels(weight.num_rows()) * panel_size) * sizeof(BFloat16),
                      "scalar");
  auto* data = reinterpret_cast<BFloat16*>(packed.data());
  pool.parallel_for(num_panels(weight.num_rows()), [&](std::int64_t panel, int) {
    std::vector<BFloat16> scratch(static_cast<std::size_t>(in_features));
    const std::int64_t last = std::min(weight.num_rows(), (panel + 1) * kWidth);
    for (std::int64_t n = panel * kWidth; n < last; ++n) {
      const BFloat16* row = weight.row(n, scratch.data());
      for (std::int64_t k = 0; k < in_features; ++k) {
        data[panel * panel_size + k * kWidth + n % kWidth] = row[k];
      }
    }
  });
  return packed;
}

void linear(const LinearParams& params, ThreadPool& pool) {
  validate(params, "scalar");
  const std::int64_t num_rows = params.x.shape[0];
  const std::int64_t panels = num_panels(params.weight->out_features());
  const std::int64_t row_tiles = (num_rows + kRowsPerTile - 1) / kRowsPerTile;
  const auto* weight = reinterpret_cast<const BFloat16*>(params.weight->data());
  for_each_tile(pool, panels * row_tiles, [&](std::int64_t tile) {
    const std::int64_t panel = tile / row_tiles;
    const BFloat16* weights = weight + panel * kWidth * params.weight->in_features();
    std::int64_t row = tile % row_tiles * kRowsPerTile;
    const std::int64_t last = std::min(num_rows, row + kRowsPerTile);
    for (; row + 4 <= last; row += 4) {
      multiply_panel<4>(weights, params.x, row, params.out, panel * kWidth);
    }
    for (; row < last; ++row) {
      multiply_panel<1>(weights, params.x, row, params.out, panel * kWidth);
    }
  });
}

}  // namespace fastpaged::reference
