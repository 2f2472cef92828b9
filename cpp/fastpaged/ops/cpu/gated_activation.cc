#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/ops.h"
#include "fastpaged/ops/cpu/vector_math.h"
#include "fastpaged/ops/row_tiles.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu {

FASTPAGED_BEGIN_TARGET(FASTPAGED_AVX512_FEATURES)
static void silu_times_up(const float* gate, const float* up, std::int64_t size, BFloat16* out) {
  const __m512 one = _mm512_set1_ps(1.0F);
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const __mmask16 lanes = first_lanes(size - i);
    const __m512 x = _mm512_maskz_loadu_ps(lanes, gate + i);
    const __m512 silu = _mm512_div_ps(x, _mm512_add_ps(one, exp(_mm512_sub_ps(_mm512_setzero_ps(), x))));
    store_bfloat16(out + i, _mm512_mul_ps(silu, _mm512_maskz_loadu_ps(lanes, up + i)), lanes);
  }
}
FASTPAGED_END_TARGET

void gated_activation(const GatedActivationParams& params, ThreadPool& pool) {
  validate(params);
  const std::int64_t size = params.out.shape[1];
  const RowTiles tiles = RowTiles::of_size(params.out.shape[0], size);
  for_each_tile(pool, tiles.count(), [&](std::int64_t tile) {
    for (std::int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
      const auto* gate = params.gate_up.row<const float>(t);
      silu_times_up(gate, gate + size, size, params.out.row<BFloat16>(t));
    }
  });
}

}  // namespace fastpaged::cpu
