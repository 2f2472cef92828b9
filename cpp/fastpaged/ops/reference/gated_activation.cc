#include "fastpaged/ops/element.h"
#include "fastpaged/ops/reference/activate.h"
#include "fastpaged/ops/reference/for_each_tile.h"
#include "fastpaged/ops/reference/ops.h"
#include "fastpaged/ops/row_tiles.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::reference {

void gated_activation(const GatedActivationParams& params, ThreadPool& pool) {
  validate(params);
  const std::int64_t size = params.out.shape[1];
  const RowTiles tiles = RowTiles::of_size(params.out.shape[0], size);
  with_element(params.out.dtype, [&](auto element) {
    using A = decltype(element);
    for_each_tile(pool, tiles.count(), [&](std::int64_t tile) {
      for (std::int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
        const auto* gate = params.gate_up.row<const float>(t);
        const auto* up = gate + size;
        auto* out = params.out.row<A>(t);
        for (std::int64_t i = 0; i < size; ++i) {
          out[i] = rounded_to<A>(activate(params.activation, gate[i]) * up[i]);
        }
      }
    });
  });
}

}  // namespace fastpaged::reference
