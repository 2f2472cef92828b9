#include <algorithm>

#include "fastpaged/ops/reference/ops.h"
#include "fastpaged/ops/row_tiles.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::reference {

void gather_rows(const GatherRowsParams& params, ThreadPool& pool) {
  validate(params);
  const auto* rows = params.rows.ptr<const std::int32_t>();
  const RowTiles tiles = RowTiles::of_size(params.out.shape[0], params.out.shape[1]);
  pool.parallel_for(tiles.count(), [&](std::int64_t tile, int) {
    for (std::int64_t r = tiles.begin(tile); r < tiles.end(tile); ++r) {
      std::copy_n(params.x.row<const float>(rows[r]), params.out.shape[1], params.out.row<float>(r));
    }
  });
}

}  // namespace fastpaged::reference
