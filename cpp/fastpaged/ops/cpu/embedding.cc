#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/ops.h"
#include "fastpaged/ops/cpu/vector_math.h"
#include "fastpaged/ops/row_tiles.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu {

FASTPAGED_BEGIN_TARGET(FASTPAGED_AVX512_FEATURES)
static void widen(const BFloat16* from, std::int64_t size, float* to) {
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const __mmask16 lanes = first_lanes(size - i);
    _mm512_mask_storeu_ps(to + i, lanes, load_bfloat16(from + i, lanes));
  }
}
FASTPAGED_END_TARGET

void embedding(const EmbeddingParams& params, ThreadPool& pool) {
  validate(params);
  const auto* token_ids = params.token_ids.ptr<const std::int32_t>();
  const std::int64_t hidden = params.out.shape[1];
  const RowTiles tiles = RowTiles::of_size(params.out.shape[0], hidden);
  for_each_tile(pool, tiles.count(), [&](std::int64_t tile) {
    for (std::int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
      widen(params.table.row<const BFloat16>(token_ids[t]), hidden, params.out.row<float>(t));
    }
  });
}

}  // namespace fastpaged::cpu
