#include <algorithm>
#include <array>
#include <vector>

#include "fastpaged/ops/element.h"
#include "fastpaged/ops/panel_outputs.h"
#include "fastpaged/ops/reference/activate.h"
#include "fastpaged/ops/reference/for_each_tile.h"
#include "fastpaged/ops/reference/ops.h"
#include "fastpaged/ops/validate.h"
#include "fastpaged/ops/weight_rows.h"

namespace fastpaged::reference {
namespace {

// Outputs side by side in memory: [panels][K][16], zeros where a panel has none (panel_outputs.h). A compiler makes
// vectors of the inner loop.
constexpr std::int64_t kWidth = kOutputsPerPanel;
constexpr std::int64_t kRowsPerTile = 64;

template <int kRows>
using Sums = std::array<std::array<float, kWidth>, kRows>;

// y of kRows rows of x and one panel: one accumulator per element, k in order, the bias last.
template <int kRows, typename A>
Sums<kRows> multiply_panel(const LinearParams& params, std::int64_t first_row, std::int64_t panel) {
  const std::int64_t in_features = params.weight->in_features();
  const A* weight = reinterpret_cast<const A*>(params.weight->data()) + panel * in_features * kWidth;
  Sums<kRows> sums{};
  std::array<const A*, kRows> rows;
  for (int r = 0; r < kRows; ++r) {
    rows[r] = params.x.row<const A>(first_row + r);
  }
  for (std::int64_t k = 0; k < in_features; ++k) {
    std::array<float, kWidth> weights;
    for (int j = 0; j < kWidth; ++j) {
      weights[j] = to_float(weight[k * kWidth + j]);
    }
    for (int r = 0; r < kRows; ++r) {
      const float value = to_float(rows[r][k]);
      for (int j = 0; j < kWidth; ++j) {
        sums[r][j] += value * weights[j];
      }
    }
  }
  const PanelOutputs outputs = panel_outputs(params.weight->out_features(), params.weight->gated(), panel);
  for (int r = 0; r < kRows; ++r) {
    for (std::int64_t j = 0; !params.bias.empty() && j < outputs.count; ++j) {
      sums[r][j] += params.bias.ptr<const float>()[outputs.first + j];
    }
  }
  return sums;
}

template <int kRows, typename A>
void write_plain(const LinearParams& params, std::int64_t first_row, std::int64_t panel) {
  const Sums<kRows> y = multiply_panel<kRows, A>(params, first_row, panel);
  const PanelOutputs outputs = panel_outputs(params.weight->out_features(), /*gated=*/false, panel);
  for (int r = 0; r < kRows; ++r) {
    for (std::int64_t j = 0; j < outputs.count; ++j) {
      const std::int64_t column = outputs.column + j;
      if (params.activation) {
        params.out.row<A>(first_row + r)[column] = rounded_to<A>(activate(*params.activation, y[r][j]));
      } else {
        float& out = params.out.row<float>(first_row + r)[column];
        out = params.adds ? out + y[r][j] : y[r][j];
      }
    }
  }
}

template <int kRows, typename A>
void write_gated(const LinearParams& params, std::int64_t first_row, std::int64_t panel_of_gates) {
  const Sums<kRows> gates = multiply_panel<kRows, A>(params, first_row, panel_of_gates);
  const Sums<kRows> ups = multiply_panel<kRows, A>(params, first_row, panel_of_gates + 1);
  const PanelOutputs outputs = panel_outputs(params.weight->out_features(), /*gated=*/true, panel_of_gates);
  const Activation activation = *params.activation;  // NOLINT(bugprone-unchecked-optional-access): validated
  for (int r = 0; r < kRows; ++r) {
    A* out = params.out.row<A>(first_row + r) + outputs.column;
    for (std::int64_t j = 0; j < outputs.count; ++j) {
      out[j] = rounded_to<A>(activate(activation, gates[r][j]) * ups[r][j]);
    }
  }
}

template <int kRows, typename A>
void write_rows(const LinearParams& params, std::int64_t first_row, std::int64_t panel) {
  params.weight->gated() ? write_gated<kRows, A>(params, first_row, panel)
                         : write_plain<kRows, A>(params, first_row, panel);
}

template <typename A>
void pack_panel(const WeightRows& weight, const PanelOutputs& outputs, A* to) {
  std::vector<A> scratch(static_cast<std::size_t>(weight.row_size()));
  for (std::int64_t i = 0; i < outputs.count; ++i) {
    const A* row = weight.row(outputs.first + i, scratch.data());
    for (std::int64_t k = 0; k < weight.row_size(); ++k) {
      to[k * kWidth + i] = row[k];
    }
  }
}

PackedLinear pack(std::span<const TensorView> parts, DType dtype, bool gated, ThreadPool& pool) {
  const WeightRows weight(parts, dtype, gated);
  const std::int64_t panels = num_panels_of(weight.num_rows(), gated);
  const std::int64_t panel_size = weight.row_size() * kWidth;
  PackedLinear packed(weight.num_rows(), weight.row_size(), dtype,
                      packed_bytes(weight.num_rows(), weight.row_size(), dtype, gated), "scalar", gated);
  with_element(dtype, [&](auto element) {
    auto* data = reinterpret_cast<decltype(element)*>(packed.data());
    pool.parallel_for(panels, [&](std::int64_t panel, int) {
      pack_panel(weight, panel_outputs(weight.num_rows(), gated, panel), data + panel * panel_size);
    });
  });
  return packed;
}

}  // namespace

PackedLinear pack_linear(std::span<const TensorView> parts, DType dtype, ThreadPool& pool) {
  return pack(parts, dtype, /*gated=*/false, pool);
}

PackedLinear pack_gated_linear(std::span<const TensorView> parts, DType dtype, ThreadPool& pool) {
  return pack(parts, dtype, /*gated=*/true, pool);
}

std::size_t packed_bytes(std::int64_t out_features, std::int64_t in_features, DType dtype, bool gated) {
  return static_cast<std::size_t>(num_panels_of(out_features, gated) * kWidth * in_features) * size_of(dtype);
}

void linear(const LinearParams& params, ThreadPool& pool) {
  validate(params, "scalar");
  const std::int64_t num_rows = params.x.shape[0];
  const std::int64_t step = params.weight->gated() ? 2 : 1;  // panels that belong together
  const std::int64_t panel_tiles = num_panels_of(params.weight->out_features(), params.weight->gated()) / step;
  const std::int64_t row_tiles = (num_rows + kRowsPerTile - 1) / kRowsPerTile;
  with_element(params.weight->dtype(), [&](auto element) {
    using A = decltype(element);
    for_each_tile(pool, panel_tiles * row_tiles, [&](std::int64_t tile) {
      const std::int64_t panel = tile / row_tiles * step;
      std::int64_t row = tile % row_tiles * kRowsPerTile;
      const std::int64_t last = std::min(num_rows, row + kRowsPerTile);
      for (; row + 4 <= last; row += 4) {
        write_rows<4, A>(params, row, panel);
      }
      for (; row < last; ++row) {
        write_rows<1, A>(params, row, panel);
      }
    });
  });
}

}  // namespace fastpaged::reference
