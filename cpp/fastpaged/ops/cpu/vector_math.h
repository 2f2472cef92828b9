// Sixteen floats at a time: what the AVX-512 kernels share. Include it before opening a target region.
#pragma once

#include <cstdint>

#include "fastpaged/base/tensor_view.h"
#include "fastpaged/ops/cpu/intrinsics.h"
#include "fastpaged/ops/cpu/target_region.h"

FASTPAGED_BEGIN_TARGET(FASTPAGED_AVX512_FEATURES)
namespace fastpaged::cpu {

constexpr std::int64_t kLanes = 16;

// The first `count` lanes; all of them from 16 on.
static inline __mmask16 first_lanes(std::int64_t count) {
  return static_cast<__mmask16>(count >= kLanes ? 0xFFFFU : (1U << count) - 1U);
}

static inline __m512 load_bfloat16(const BFloat16* from, __mmask16 lanes = 0xFFFF) {
  const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

// To the nearest, ties to even; denormals become zero.
static inline void store_bfloat16(BFloat16* to, __m512 x, __mmask16 lanes = 0xFFFF) {
  _mm256_mask_storeu_epi16(to, lanes, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
}

// One fixed tree: lanes 8 apart, then 4, 2, 1.
static inline float sum_of_lanes(__m512 x) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// e^x within 2 ulp; NaN stays NaN; results below the smallest normal number are 0.
static inline __m512 exp(__m512 x) {
  // A bound comes first: max and min return their second operand when either is NaN.
  x = _mm512_max_ps(_mm512_set1_ps(-126.0F), _mm512_min_ps(_mm512_set1_ps(126.0F), x));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504F)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // ln 2 in two parts: n * high is exact.
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752F), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6F), r);
  __m512 sum = _mm512_set1_ps(1.0F / 5040.0F);
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0F / 720.0F));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0F / 120.0F));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0F / 24.0F));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0F / 6.0F));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(0.5F));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0F));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(sum, n);
}

}  // namespace fastpaged::cpu
FASTPAGED_END_TARGET
