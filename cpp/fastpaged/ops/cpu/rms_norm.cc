#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/ops.h"
#include "fastpaged/ops/cpu/vector_math.h"
#include "fastpaged/ops/row_tiles.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu {

FASTPAGED_BEGIN_TARGET(FASTPAGED_AVX512_FEATURES)
// Four running sums of squares, lane by lane, joined in one order: a tree fixed by the row's size.
static float sum_of_squares(float* x, const float* residual, std::int64_t size) {
  __m512 sums[4] = {};
  for (std::int64_t i = 0; i < size; i += 4 * kLanes) {
    for (std::int64_t j = 0; j < 4 && i + j * kLanes < size; ++j) {
      const std::int64_t at = i + j * kLanes;
      const __mmask16 lanes = first_lanes(size - at);
      __m512 value = _mm512_maskz_loadu_ps(lanes, x + at);
      if (residual != nullptr) {
        value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(lanes, residual + at));
        _mm512_mask_storeu_ps(x + at, lanes, value);
      }
      sums[j] = _mm512_fmadd_ps(value, value, sums[j]);
    }
  }
  return sum_of_lanes(_mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
}

static void normalize(float* x, const float* residual, const float* weight, float eps, std::int64_t size,
                      BFloat16* out) {
  const float mean = sum_of_squares(x, residual, size) / static_cast<float>(size);
  const __m512 scale = _mm512_set1_ps(1.0F / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps))));
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const __mmask16 lanes = first_lanes(size - i);
    const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), scale);
    store_bfloat16(out + i, _mm512_mul_ps(scaled, _mm512_maskz_loadu_ps(lanes, weight + i)), lanes);
  }
}
FASTPAGED_END_TARGET

void rms_norm(const RmsNormParams& params, ThreadPool& pool) {
  validate(params);
  const std::int64_t hidden = params.x.shape[1];
  const RowTiles tiles = RowTiles::of_size(params.x.shape[0], hidden);
  for_each_tile(pool, tiles.count(), [&](std::int64_t tile) {
    for (std::int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
      const float* residual = params.residual.empty() ? nullptr : params.residual.row<const float>(t);
      normalize(params.x.row<float>(t), residual, params.weight.ptr<const float>(), params.eps, hidden,
                params.out.row<BFloat16>(t));
    }
  });
}

}  // namespace fastpaged::cpu
