#include "fastpaged/ops/element.h"
#include "fastpaged/ops/reference/for_each_tile.h"
#include "fastpaged/ops/reference/ops.h"
#include "fastpaged/ops/row_tiles.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::reference {
namespace {

template <typename A>
void embed_token(const EmbeddingParams& params, std::int64_t t) {
  const auto* row = params.table.row<const A>(params.token_ids.ptr<const std::int32_t>()[t]);
  const float* position = nullptr;
  if (!params.position_table.empty()) {
    position = params.position_table.row<const float>(params.positions.ptr<const std::int32_t>()[t]);
  }
  auto* out = params.out.row<float>(t);
  for (std::int64_t i = 0; i < params.out.shape[1]; ++i) {
    const float scaled = to_float(row[i]) * params.scale;
    out[i] = position == nullptr ? scaled : scaled + position[i];
  }
}

}  // namespace

void embedding(const EmbeddingParams& params, ThreadPool& pool) {
  validate(params);
  const RowTiles tiles = RowTiles::of_size(params.out.shape[0], params.out.shape[1]);
  with_element(params.table.dtype, [&](auto element) {
    for_each_tile(pool, tiles.count(), [&](std::int64_t tile) {
      for (std::int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
        embed_token<decltype(element)>(params, t);
      }
    });
  });
}

}  // namespace fastpaged::reference
