#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/vector.h"
#include "fastpaged/ops/cpu/vector_ops.h"
#include "fastpaged/ops/row_tiles.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)
static void copy(const float* from, std::int64_t size, float* to) {
  for (std::int64_t i = 0; i < size; i += kLanes) {
    store(to + i, load(from + i, size - i), size - i);
  }
}
FASTPAGED_END_TARGET

void gather_rows(const GatherRowsParams& params, ThreadPool& pool) {
  validate(params);
  const auto* rows = params.rows.ptr<const std::int32_t>();
  const RowTiles tiles = RowTiles::of_size(params.out.shape[0], params.out.shape[1]);
  for_each_tile(pool, tiles.count(), [&](std::int64_t tile) {
    for (std::int64_t r = tiles.begin(tile); r < tiles.end(tile); ++r) {
      copy(params.x.row<const float>(rows[r]), params.out.shape[1], params.out.row<float>(r));
    }
  });
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
