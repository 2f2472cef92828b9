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

std::size_t bytes_of_panels(std::int64_t out_features, std::int64_t in_features, DType dtype, bool gated) {
  return with_element(dtype, [&](auto element) {
    using A = decltype(element);
    const std::int64_t elements = num_panels_of(out_features, gated) * panel_elements<A>(in_features);
    return static_cast<std::size_t>(elements) * sizeof(A);
  });
}

PackedLinear pack_panels(std::span<const TensorView> parts, DType dtype, const char* isa, bool gated,
                         ThreadPool& pool) {
  const WeightRows weight(parts, dtype, gated);
  const std::int64_t out_features = weight.num_rows();
  const std::int64_t in_features = weight.row_size();
  const std::int64_t panels = num_panels_of(out_features, gated);
  return with_element(dtype, [&](auto element) {
    using A = decltype(element);
    const std::int64_t panel_size = panel_elements<A>(in_features);
    PackedLinear packed(out_features, in_features, dtype, bytes_of_panels(out_features, in_features, dtype, gated), isa,
                        gated);
    auto* data = reinterpret_cast<A*>(packed.data());
    pool.parallel_for(panels, [&](std::int64_t panel, int) {
      std::vector<A> scratch(static_cast<std::size_t>(in_features));
      const PanelOutputs outputs = panel_outputs(out_features, gated, panel);
      for (std::int64_t i = 0; i < outputs.count; ++i) {
        pack_row(weight.row(outputs.first + i, scratch.data()), in_features, i, data + panel * panel_size);
      }
    });
    return packed;
  });
}

}  // namespace fastpaged::cpu
