#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/ops.h"
#include "fastpaged/ops/cpu/vector_math.h"
#include "fastpaged/ops/kv_layout.h"
#include "fastpaged/ops/row_tiles.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu {

FASTPAGED_BEGIN_TARGET(FASTPAGED_AVX512_FEATURES)
static void rotate(const float* x, const float* cos_sin, std::int64_t head_dim, BFloat16* out) {
  const std::int64_t half = head_dim / 2;
  for (std::int64_t i = 0; i < half; i += kLanes) {
    const __mmask16 lanes = first_lanes(half - i);
    const __m512 low = _mm512_maskz_loadu_ps(lanes, x + i);
    const __m512 high = _mm512_maskz_loadu_ps(lanes, x + half + i);
    const __m512 cosine = _mm512_maskz_loadu_ps(lanes, cos_sin + i);
    const __m512 sine = _mm512_maskz_loadu_ps(lanes, cos_sin + half + i);
    store_bfloat16(out + i, _mm512_fmsub_ps(low, cosine, _mm512_mul_ps(high, sine)), lanes);
    store_bfloat16(out + half + i, _mm512_fmadd_ps(high, cosine, _mm512_mul_ps(low, sine)), lanes);
  }
}

static void narrow(const float* x, std::int64_t size, BFloat16* out) {
  for (std::int64_t i = 0; i < size; i += kLanes) {
    store_bfloat16(out + i, _mm512_loadu_ps(x + i));
  }
}
FASTPAGED_END_TARGET

namespace {

void write_token(const RotaryCacheWriteParams& params, const KVLayout<BFloat16>& cache, std::int64_t t) {
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
    narrow(from, head_dim, cache.value(slot / cache.block_size, head, slot % cache.block_size));
  }
}

}  // namespace

void rotary_cache_write(const RotaryCacheWriteParams& params, ThreadPool& pool) {
  validate(params);
  const KVLayout<BFloat16> cache(params.kv_cache);
  const RowTiles tiles = RowTiles::of_size(params.qkv.shape[0], params.qkv.shape[1]);
  for_each_tile(pool, tiles.count(), [&](std::int64_t tile) {
    for (std::int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
      write_token(params, cache, t);
    }
  });
}

}  // namespace fastpaged::cpu
