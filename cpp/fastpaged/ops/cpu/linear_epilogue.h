// The end of a linear op: what becomes of its sums. Bias, activation, gates and residual are done here, on a few rows
// of a few panels at a time, while they are in the nearest cache: no array of sums ever goes to memory and comes back.
#pragma once

#include <cstdint>

#include "fastpaged/ops/params.h"

namespace fastpaged::cpu {

// x times the weight for a block of rows and neighbouring panels.
struct PanelSums {
  const float* sums{};      // [num_rows][stride]: 16 of each panel
  std::int64_t stride{};    // at least 16 num_panels
  std::int64_t row;         // of x and out, the first one
  std::int64_t num_rows{};  // at least 1
  std::int64_t panel;       // the first one
  std::int64_t num_panels;  // at least 1, none beyond the weight's last
  // Of a gated weight: [num_rows][16], in which gates wait for their ups. The same memory in the call that has a panel
  // of gates for these rows and in the next one for them, which has the ups, unless it is one call.
  float* gates;
};

// Finishes the sums and writes them out. REQUIRES: valid params, the weight from pack_panels (weight_panels.h); called
// in for_each_tile.
namespace avx2 {
void finish_sums(const LinearParams& params, const PanelSums& block);
}  // namespace avx2
namespace avx512 {
void finish_sums(const LinearParams& params, const PanelSums& block);
}  // namespace avx512

}  // namespace fastpaged::cpu
