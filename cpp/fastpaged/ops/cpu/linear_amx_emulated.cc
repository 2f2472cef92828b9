// The AMX linear layers and attention, each tile instruction carried out in software.
#include <cstdint>
#include <cstring>

#include "fastpaged/ops/cpu/amx_attention.h"
#include "fastpaged/ops/cpu/amx_linear.h"
#include "fastpaged/ops/cpu/intrinsics.h"
#include "fastpaged/ops/cpu/ops.h"
#include "fastpaged/ops/cpu/target_region.h"

namespace fastpaged::cpu {

FASTPAGED_BEGIN_TARGET(FASTPAGED_AVX512_FEATURES)

// C += A * B with the fused multiply-add of AVX-512. REQUIRES: MXCSR rounds to nearest, DAZ and FTZ are set.
static inline void emulate_tdpbf16ps(float* c, const void* a, const void* b, int rows) {
  const auto* a_bytes = static_cast<const char*>(a);
  const auto* b_bytes = static_cast<const char*>(b);
  for (int m = 0; m < rows; ++m) {
    __m512 even = _mm512_setzero_ps();
    __m512 odd = _mm512_setzero_ps();
    for (int pair = 0; pair < kTileRowBytes / 4; ++pair) {
      std::uint32_t x;
      std::memcpy(&x, a_bytes + m * kTileRowBytes + pair * 4, sizeof(x));
      const __m512i w = _mm512_loadu_si512(b_bytes + pair * kTileRowBytes);
      const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000U));
      even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(x << 16))),
                             _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)), even);
      odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(x & 0xFFFF0000U))),
                            _mm512_castsi512_ps(_mm512_and_si512(w, high)), odd);
    }
    float* row = c + m * kTileRowBytes / 4;
    _mm512_storeu_ps(row, _mm512_add_ps(_mm512_loadu_ps(row), _mm512_add_ps(even, odd)));
  }
}

FASTPAGED_END_TARGET

namespace {

class EmulatedAmxTiles {
 public:
  static constexpr const char* kIsaName = "amx_emulated";

  void configure(const TileRowCounts& rows) {
    rows_ = rows;
    std::memset(tiles_, 0, sizeof(tiles_));
  }
  template <int kTile>
  void zero() {
    std::memset(tiles_[kTile], 0, sizeof(tiles_[kTile]));
  }
  template <int kTile>
  void load(const void* from, std::int64_t stride) {
    zero<kTile>();
    for (int row = 0; row < rows_[kTile]; ++row) {
      std::memcpy(tiles_[kTile] + row * kTileRowBytes, static_cast<const char*>(from) + row * stride, kTileRowBytes);
    }
  }
  template <int kTile>
  void store(void* to, std::int64_t stride) {
    for (int row = 0; row < rows_[kTile]; ++row) {
      std::memcpy(static_cast<char*>(to) + row * stride, tiles_[kTile] + row * kTileRowBytes, kTileRowBytes);
    }
  }
  template <int kC, int kA, int kB>
  void dot() {
    emulate_tdpbf16ps(reinterpret_cast<float*>(tiles_[kC]), tiles_[kA], tiles_[kB], rows_[kC]);
  }

 private:
  TileRowCounts rows_{};
  alignas(64) unsigned char tiles_[kNumTiles][kTileRows * kTileRowBytes] = {};
};

}  // namespace

OpTable amx_emulated_table() {
  OpTable table = amx_table_of<EmulatedAmxTiles>();
  table.paged_attention = &avx512::amx_paged_attention<EmulatedAmxTiles>;
  return table;
}

}  // namespace fastpaged::cpu
