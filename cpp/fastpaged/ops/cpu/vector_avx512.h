// The functions of vector.h with AVX-512 and its bfloat16 instructions.
#pragma once

#include <cstdint>
#include <cstring>

#include "fastpaged/base/tensor_view.h"
#include "fastpaged/ops/cpu/intrinsics.h"
#include "fastpaged/ops/cpu/target_region.h"

#define FASTPAGED_VECTOR_FEATURES FASTPAGED_AVX512_FEATURES

FASTPAGED_BEGIN_TARGET(FASTPAGED_AVX512_FEATURES)
namespace fastpaged::cpu::avx512 {

constexpr const char* kIsaName = "avx512";
constexpr std::int64_t kLanes = 16;
constexpr bool kHasDot = true;

using Floats = __m512;
using Pairs = __m512bh;

static inline __mmask16 lane_mask(std::int64_t count) {
  return static_cast<__mmask16>(count >= kLanes ? 0xFFFFU : (1U << (count > 0 ? count : 0)) - 1U);
}

static inline Floats load(const float* from, std::int64_t count = kLanes) {
  return _mm512_maskz_loadu_ps(lane_mask(count), from);
}
static inline Floats load(const BFloat16* from, std::int64_t count = kLanes) {
  const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lane_mask(count), from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}
static inline void store(float* to, Floats x, std::int64_t count = kLanes) {
  _mm512_mask_storeu_ps(to, lane_mask(count), x);
}
static inline void store(BFloat16* to, Floats x, std::int64_t count = kLanes) {
  _mm256_mask_storeu_epi16(to, lane_mask(count), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
}

static inline Floats zero() {
  return _mm512_setzero_ps();
}
static inline Floats set1(float x) {
  return _mm512_set1_ps(x);
}
static inline Floats add(Floats a, Floats b) {
  return _mm512_add_ps(a, b);
}
static inline Floats sub(Floats a, Floats b) {
  return _mm512_sub_ps(a, b);
}
static inline Floats mul(Floats a, Floats b) {
  return _mm512_mul_ps(a, b);
}
static inline Floats div(Floats a, Floats b) {
  return _mm512_div_ps(a, b);
}
static inline Floats sqrt(Floats x) {
  return _mm512_sqrt_ps(x);
}
static inline Floats fma(Floats a, Floats b, Floats c) {
  return _mm512_fmadd_ps(a, b, c);
}
static inline Floats fms(Floats a, Floats b, Floats c) {
  return _mm512_fmsub_ps(a, b, c);
}
static inline Floats fnma(Floats a, Floats b, Floats c) {
  return _mm512_fnmadd_ps(a, b, c);
}
static inline Floats max(Floats a, Floats b) {
  return _mm512_max_ps(a, b);
}
static inline Floats min(Floats a, Floats b) {
  return _mm512_min_ps(a, b);
}

static inline Floats abs(Floats x) {
  return _mm512_andnot_ps(_mm512_set1_ps(-0.0F), x);
}
static inline Floats copy_sign(Floats x, Floats sign) {
  const Floats sign_bit = _mm512_set1_ps(-0.0F);
  return _mm512_or_ps(_mm512_andnot_ps(sign_bit, x), _mm512_and_ps(sign_bit, sign));
}
static inline Floats if_less(Floats a, Floats b, Floats yes, Floats no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
static inline Floats first_lanes(std::int64_t count, Floats x, Floats other) {
  return _mm512_mask_blend_ps(lane_mask(count), other, x);
}
static inline Floats round_to_integer(Floats x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline Floats times_power_of_2(Floats x, Floats n) {
  return _mm512_scalef_ps(x, n);
}

static inline float sum_of_lanes(Floats x) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
static inline float max_of_lanes(Floats x) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

static inline float first_lane(Floats x) {
  return _mm512_cvtss_f32(x);
}
static inline Floats lane_numbers() {
  return _mm512_setr_ps(0.0F, 1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F, 7.0F, 8.0F, 9.0F, 10.0F, 11.0F, 12.0F, 13.0F, 14.0F,
                        15.0F);
}

// Four rounds: within pairs, within quarters, between quarters.
static inline void transpose(Floats (&m)[16]) {
  Floats a[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps(m[i], m[i + 1]);
    a[i + 1] = _mm512_unpackhi_ps(m[i], m[i + 1]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const int from = i / 2 * 4 + i % 2;
    const __m512d low = _mm512_castps_pd(a[from]);
    const __m512d high = _mm512_castps_pd(a[from + 2]);
    m[2 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
    m[2 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    a[i] = _mm512_shuffle_f32x4(m[i], m[i + 4], 0x88);
    a[i + 4] = _mm512_shuffle_f32x4(m[i], m[i + 4], 0xDD);
    a[i + 8] = _mm512_shuffle_f32x4(m[i + 8], m[i + 12], 0x88);
    a[i + 12] = _mm512_shuffle_f32x4(m[i + 8], m[i + 12], 0xDD);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    m[i] = _mm512_shuffle_f32x4(a[i], a[i + 8], 0x88);
    m[i + 4] = _mm512_shuffle_f32x4(a[i + 4], a[i + 12], 0x88);
    m[i + 8] = _mm512_shuffle_f32x4(a[i], a[i + 8], 0xDD);
    m[i + 12] = _mm512_shuffle_f32x4(a[i + 4], a[i + 12], 0xDD);
  }
}

static inline Pairs load_pairs(const BFloat16* from) {
  return reinterpret_cast<Pairs>(_mm512_loadu_si512(from));
}
static inline Pairs broadcast_pair(const BFloat16* from) {
  std::int32_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return reinterpret_cast<Pairs>(_mm512_set1_epi32(bits));
}
static inline Pairs round_to_pairs(Floats low, Floats high) {
  return _mm512_cvtne2ps_pbh(high, low);
}
static inline Pairs pair_up(Floats first, Floats second) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(first), 16);
  return reinterpret_cast<Pairs>(_mm512_or_si512(low, _mm512_castps_si512(second)));
}
static inline void store_pairs(BFloat16* to, Pairs pairs) {
  _mm512_storeu_si512(to, reinterpret_cast<__m512i>(pairs));
}
static inline void store_alternate(BFloat16* to, const BFloat16* from) {
  const __m512i first = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  _mm512_mask_storeu_epi16(to, 0x55555555U, first);
}
static inline Pairs one_of_each(Pairs pairs, std::int64_t which) {
  const __m512i kept = _mm512_set1_epi32(which == 0 ? 0x0000FFFF : static_cast<int>(0xFFFF0000U));
  return reinterpret_cast<Pairs>(_mm512_and_si512(reinterpret_cast<__m512i>(pairs), kept));
}
static inline Floats first_of(Pairs pairs) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(reinterpret_cast<__m512i>(pairs), 16));
}
static inline Floats second_of(Pairs pairs) {
  return reinterpret_cast<Floats>(one_of_each(pairs, 1));
}
static inline Floats dot(Pairs a, Pairs b, Floats c) {
  return _mm512_dpbf16_ps(c, a, b);
}

}  // namespace fastpaged::cpu::avx512
FASTPAGED_END_TARGET
