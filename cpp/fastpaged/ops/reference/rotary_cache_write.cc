#include "fastpaged/ops/bfloat16.h"
#include "fastpaged/ops/kv_layout.h"
#include "fastpaged/ops/reference/for_each_tile.h"
#include "fastpaged/ops/reference/ops.h"
#include "fastpaged/ops/row_tiles.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::reference {
namespace {

void rotate(const float* x, const float* cos_sin, std::int64_t head_dim, BFloat16* out) {
  const std::int64_t half = head_dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const float cosine = cos_sin[i];
    const float sine = cos_sin[i + half];
    out[i] = to_bfloat16(x[i] * cosine - x[i + half] * sine);
    out[i + half] = to_bfloat16(x[i + half] * cosine + x[i] * sine);
  }
}

void write_token(const RotaryCacheWriteParams& params, const KVLayout& cache, std::int64_t t) {
  const std::int64_t num_heads = params.q.shape[1];
  const std::int64_t head_dim = params.q.shape[2];
  const auto* cos_sin = params.cos_sin.row<const float>(params.positions.ptr<const std::int32_t>()[t]);
  const std::int64_t slot = params.slot_mapping.ptr<const std::int32_t>()[t];
  const auto* from = params.qkv.row<const float>(t);
  for (std::int64_t head = 0; head < num_heads; ++head, from += head_dim) {
    rotate(from, cos_sin, head_dim, params.q.row<BFloat16>(t) + head * head_dim);
  }
  for (std::int64_t head = 0; head < cache.num_kv_heads; ++head, from += head_dim) {
    rotate(from, cos_sin, head_dim, cache.key(slot / cache.block_size, head, slot % cache.block_size));
  }
  for (std::int64_t head = 0; head < cache.num_kv_heads; ++head, from += head_dim) {
    BFloat16* value = cache.value(slot / cache.block_size, head, slot % cache.block_size);
    for (std::int64_t i = 0; i < head_dim; ++i) {
      value[i] = to_bfloat16(from[i]);
    }
  }
}

}  // namespace

void rotary_cache_write(const RotaryCacheWriteParams& params, ThreadPool& pool) {
  validate(params);
  const KVLayout cache(params.kv_cache);
  const RowTiles tiles = RowTiles::of_size(params.qkv.shape[0], params.qkv.shape[1]);
  for_each_tile(pool, tiles.count(), [&](std::int64_t tile) {
    for (std::int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
      write_token(params, cache, t);
    }
  });
}

}  // namespace fastpaged::reference
