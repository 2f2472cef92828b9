#include "fastpaged/ops/reference/for_each_tile.h"
#include "fastpaged/ops/reference/ops.h"
#include "fastpaged/ops/reference/tanh.h"
#include "fastpaged/ops/row_tiles.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::reference {

void soft_cap(const SoftCapParams& params, ThreadPool& pool) {
  validate(params);
  const std::int64_t size = params.x.shape[1];
  const RowTiles tiles = RowTiles::of_size(params.x.shape[0], size);
  for_each_tile(pool, tiles.count(), [&](std::int64_t tile) {
    for (std::int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
      auto* x = params.x.row<float>(t);
      for (std::int64_t i = 0; i < size; ++i) {
        x[i] = params.cap * tanh(x[i] / params.cap);
      }
    }
  });
}

}  // namespace fastpaged::reference
