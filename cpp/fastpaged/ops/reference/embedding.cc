#include <algorithm>

#include "fastpaged/ops/bfloat16.h"
#include "fastpaged/ops/reference/ops.h"
#include "fastpaged/ops/row_tiles.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::reference {

void embedding(const EmbeddingParams& params, ThreadPool& pool) {
  validate(params);
  const auto* token_ids = params.token_ids.ptr<const std::int32_t>();
  const std::int64_t hidden = params.out.shape[1];
  const RowTiles tiles = RowTiles::of_size(params.out.shape[0], hidden);
  pool.parallel_for(tiles.count(), [&](std::int64_t tile, int) {
    for (std::int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
      const auto* from = params.table.row<const BFloat16>(token_ids[t]);
      std::transform(from, from + hidden, params.out.row<float>(t), to_float);
    }
  });
}

}  // namespace fastpaged::reference
