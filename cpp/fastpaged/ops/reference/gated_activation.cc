#include "fastpaged/ops/bfloat16.h"
#include "fastpaged/ops/reference/exp.h"
#include "fastpaged/ops/reference/for_each_tile.h"
#include "fastpaged/ops/reference/ops.h"
#include "fastpaged/ops/row_tiles.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::reference {

void gated_activation(const GatedActivationParams& params, ThreadPool& pool) {
  validate(params);
  const std::int64_t size = params.out.shape[1];
  const RowTiles tiles = RowTiles::of_size(params.out.shape[0], size);
  for_each_tile(pool, tiles.count(), [&](std::int64_t tile) {
    for (std::int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
      const auto* gate = params.gate_up.row<const float>(t);
      const auto* up = gate + size;
      auto* out = params.out.row<BFloat16>(t);
      for (std::int64_t i = 0; i < size; ++i) {
        out[i] = to_bfloat16(gate[i] / (1.0F + exp(-gate[i])) * up[i]);
      }
    }
  });
}

}  // namespace fastpaged::reference
