#include "fastpaged/ops/cpu/weight_panels.h"

#include <algorithm>
#include <vector>

#include "fastpaged/ops/element.h"
#include "fastpaged/ops/weight_rows.h"

namespace fastpaged::cpu {
namespace {

// Row n of the weight becomes column n of its panel.
template <typename A>
void pack_row(const A* row, std::int64_t in_features, std::int64_t column, A* panel) {
  constexpr std::int64_t kStep = kDepthStep<A>;
  A* to = panel + column * kStep;
  for (std::int64_t k = 0; k < in_features; k += kStep, to += kPanelWidth * kStep) {
    std::copy_n(row + k, std::min(kStep, in_features - k), to);
  }
}

}  // namespace

PackedLinear pack_panels(std::span<const TensorView> parts, DType dtype, const char* isa, ThreadPool& pool) {
  const WeightRows weight(parts, dtype);
  const std::int64_t out_features = weight.num_rows();
  const std::int64_t in_features = weight.row_size();
  return with_element(dtype, [&](auto element) {
    using A = decltype(element);
    const std::int64_t panel_size = panel_elements<A>(in_features);
    const auto num_bytes = static_cast<std::size_t>(num_panels(out_features) * panel_size) * sizeof(A);
    PackedLinear packed(out_features, in_features, dtype, num_bytes, isa);
    auto* data = reinterpret_cast<A*>(packed.data());
    pool.parallel_for(num_panels(out_features), [&](std::int64_t panel, int) {
      std::vector<A> scratch(static_cast<std::size_t>(in_features));
      const std::int64_t last = std::min(out_features, (panel + 1) * kPanelWidth);
      for (std::int64_t n = panel * kPanelWidth; n < last; ++n) {
        pack_row(weight.row(n, scratch.data()), in_features, n % kPanelWidth, data + panel * panel_size);
      }
    });
    return packed;
  });
}

}  // namespace fastpaged::cpu
