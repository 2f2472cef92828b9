#include <algorithm>
#include <array>
#include <vector>

#include "fastpaged/ops/element.h"
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

// out[r][0..width) for kRows rows of x: one accumulator per element, k in order, the bias last.
template <int kRows, typename A>
void multiply_panel(const A* panel, const LinearParams& params, std::int64_t first_row, std::int64_t column) {
  std::array<std::array<float, kWidth>, kRows> sums{};
  std::array<const A*, kRows> rows;
  for (int r = 0; r < kRows; ++r) {
    rows[r] = params.x.row<const A>(first_row + r);
  }
  for (std::int64_t k = 0; k < params.x.shape[1]; ++k) {
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
  const std::int64_t width = std::min(kWidth, params.out.shape[1] - column);
  for (int r = 0; r < kRows; ++r) {
    for (std::int64_t j = 0; !params.bias.empty() && j < width; ++j) {
      sums[r][j] += params.bias.ptr<const float>()[column + j];
    }
    std::copy_n(sums[r].begin(), width, params.out.row<float>(first_row + r) + column);
  }
}

template <typename A>
void pack_panel(const WeightRows& weight, std::int64_t panel, A* to) {
  std::vector<A> scratch(static_cast<std::size_t>(weight.row_size()));
  const std::int64_t first = panel * kWidth;
  const std::int64_t last = std::min(weight.num_rows(), first + kWidth);
  for (std::int64_t n = first; n < last; ++n) {
    const A* row = weight.row(n, scratch.data());
    for (std::int64_t k = 0; k < weight.row_size(); ++k) {
      to[k * kWidth + n - first] = row[k];
    }
  }
}

// Rows [row, last) of one panel.
template <typename A>
void multiply_rows(const A* panel, const LinearParams& params, std::int64_t row, std::int64_t last,
                   std::int64_t column) {
  for (; row + 4 <= last; row += 4) {
    multiply_panel<4>(panel, params, row, column);
  }
  for (; row < last; ++row) {
    multiply_panel<1>(panel, params, row, column);
  }
}

}  // namespace

PackedLinear pack_linear(std::span<const TensorView> parts, DType dtype, ThreadPool& pool) {
  const WeightRows weight(parts, dtype);
  const std::int64_t panels = num_panels(weight.num_rows());
  const std::int64_t panel_size = weight.row_size() * kWidth;
  PackedLinear packed(weight.num_rows(), weight.row_size(), dtype,
                      static_cast<std::size_t>(panels * panel_size) * size_of(dtype), "scalar");
  with_element(dtype, [&](auto element) {
    auto* data = reinterpret_cast<decltype(element)*>(packed.data());
    pool.parallel_for(panels, [&](std::int64_t panel, int) { pack_panel(weight, panel, data + panel * panel_size); });
  });
  return packed;
}

void linear(const LinearParams& params, ThreadPool& pool) {
  validate(params, "scalar");
  const std::int64_t num_rows = params.x.shape[0];
  const std::int64_t panels = num_panels(params.weight->out_features());
  const std::int64_t panel_size = params.weight->in_features() * kWidth;
  const std::int64_t row_tiles = (num_rows + kRowsPerTile - 1) / kRowsPerTile;
  with_element(params.weight->dtype(), [&](auto element) {
    const auto* weight = reinterpret_cast<const decltype(element)*>(params.weight->data());
    for_each_tile(pool, panels * row_tiles, [&](std::int64_t tile) {
      const std::int64_t panel = tile / row_tiles;
      const std::int64_t row = tile % row_tiles * kRowsPerTile;
      multiply_rows(weight + panel * panel_size, params, row, std::min(num_rows, row + kRowsPerTile), panel * kWidth);
    });
  });
}

}  // namespace fastpaged::reference
