#include "fastpaged/ops/cpu/pair_tiles.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "fastpaged/base/check.h"
#include "fastpaged/ops/weight_rows.h"

namespace fastpaged::cpu {
namespace {

// Row n of the weight becomes column n of its panel: a pair of k is one 32-bit element of each vector.
void pack_row(const BFloat16* row, std::int64_t in_features, std::int64_t column, BFloat16* panel) {
  BFloat16* to = panel + 2 * column;
  for (std::int64_t k = 0; k + 1 < in_features; k += 2, to += kPairVector) {
    std::memcpy(to, row + k, 2 * sizeof(BFloat16));
  }
  if (in_features % 2 != 0) {
    *to = row[in_features - 1];
  }
}

}  // namespace

PackedLinear pack_pair_tiles(std::span<const TensorView> parts, DType dtype, const char* isa, ThreadPool& pool) {
  require(dtype == DType::kBFloat16, [] { return "pack_linear: these tiles hold bfloat16, got float32"; });
  const WeightRows weight(parts, dtype);
  const std::int64_t panel_size = panel_elements(weight.row_size());
  const std::int64_t panels = num_panels(weight.num_rows());
  PackedLinear packed(weight.num_rows(), weight.row_size(), dtype,
                      static_cast<std::size_t>(panels * panel_size) * sizeof(BFloat16), isa);
  auto* data = reinterpret_cast<BFloat16*>(packed.data());
  pool.parallel_for(panels, [&](std::int64_t panel, int) {
    std::vector<BFloat16> scratch(static_cast<std::size_t>(weight.row_size()));
    const std::int64_t last = std::min(weight.num_rows(), (panel + 1) * kPanelWidth);
    for (std::int64_t n = panel * kPanelWidth; n < last; ++n) {
      pack_row(weight.row(n, scratch.data()), weight.row_size(), n % kPanelWidth, data + panel * panel_size);
    }
  });
  return packed;
}

}  // namespace fastpaged::cpu
