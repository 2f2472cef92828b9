// Which outputs of a linear weight lie in which panel of 16. Those of a plain weight follow each other. In a gated one
// every other panel holds gates, and the panel behind it the ups they belong to, so that whoever computes both has them
// side by side; each half is padded to whole panels.
#pragma once

#include <algorithm>
#include <cstdint>

namespace fastpaged {

constexpr std::int64_t kOutputsPerPanel = 16;

struct PanelOutputs {
  std::int64_t first;   // row of the weight
  std::int64_t count;   // rows from there on; the rest of the panel is padding
  std::int64_t column;  // of the op's output, where they go
};

constexpr std::int64_t num_panels_of(std::int64_t out_features, bool gated) {
  const std::int64_t columns = gated ? out_features / 2 : out_features;
  return (columns + kOutputsPerPanel - 1) / kOutputsPerPanel * (gated ? 2 : 1);
}

constexpr bool holds_gates(std::int64_t panel, bool gated) {
  return gated && panel % 2 == 0;
}

constexpr PanelOutputs panel_outputs(std::int64_t out_features, bool gated, std::int64_t panel) {
  const std::int64_t columns = gated ? out_features / 2 : out_features;
  const std::int64_t column = (gated ? panel / 2 : panel) * kOutputsPerPanel;
  const bool is_up = gated && panel % 2 != 0;
  return {is_up ? columns + column : column, std::min(kOutputsPerPanel, columns - column), column};
}

}  // namespace fastpaged
