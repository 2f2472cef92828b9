// The functions of vector.h with AVX2 and FMA.
#pragma once

#include <cstdint>
#include <cstring>

#include "fastpaged/base/tensor_view.h"
#include "fastpaged/ops/cpu/intrinsics.h"
#include "fastpaged/ops/cpu/target_region.h"

#define FASTPAGED_VECTOR_FEATURES FASTPAGED_AVX2_FEATURES

FASTPAGED_BEGIN_TARGET(FASTPAGED_AVX2_FEATURES)
namespace fastpaged::cpu::avx2 {

constexpr const char* kIsaName = "avx2";
constexpr std::int64_t kLanes = 8;
constexpr bool kHasDot = false;

using Floats = __m256;
using Pairs = __m256i;

static inline __m256i lane_mask(std::int64_t count) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count < kLanes ? count : kLanes)), lane);
}

static inline Floats load(const float* from, std::int64_t count = kLanes) {
  return count >= kLanes ? _mm256_loadu_ps(from) : _mm256_maskload_ps(from, lane_mask(count));
}
static inline Floats load(const BFloat16* from, std::int64_t count = kLanes) {
  __m128i halves;
  if (count >= kLanes) {
    halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  } else {
    BFloat16 some[kLanes] = {};
    for (std::int64_t i = 0; i < count; ++i) {
      some[i] = from[i];
    }
    halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(some));
  }
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

static inline void store(float* to, Floats x, std::int64_t count = kLanes) {
  if (count >= kLanes) {
    _mm256_storeu_ps(to, x);
  } else {
    _mm256_maskstore_ps(to, lane_mask(count), x);
  }
}

// What VCVTNEPS2BF16 does.
static inline __m128i round_to_bfloat16(Floats x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i exponent = _mm256_and_si256(bits, _mm256_set1_epi32(0x7F800000));
  const __m256i is_tiny = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
  const __m256i dropped = _mm256_and_si256(is_tiny, _mm256_set1_epi32(0x7FFFFFFF));
  const __m256i result = _mm256_andnot_si256(dropped, _mm256_blendv_epi8(rounded, quiet, is_nan));
  const __m256i high = _mm256_srli_epi32(result, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}
static inline void store(BFloat16* to, Floats x, std::int64_t count = kLanes) {
  const __m128i halves = round_to_bfloat16(x);
  if (count >= kLanes) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
    return;
  }
  BFloat16 all[kLanes];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(all), halves);
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = all[i];
  }
}

static inline Floats zero() {
  return _mm256_setzero_ps();
}
static inline Floats set1(float x) {
  return _mm256_set1_ps(x);
}
static inline Floats add(Floats a, Floats b) {
  return _mm256_add_ps(a, b);
}
static inline Floats sub(Floats a, Floats b) {
  return _mm256_sub_ps(a, b);
}
static inline Floats mul(Floats a, Floats b) {
  return _mm256_mul_ps(a, b);
}
static inline Floats div(Floats a, Floats b) {
  return _mm256_div_ps(a, b);
}
static inline Floats sqrt(Floats x) {
  return _mm256_sqrt_ps(x);
}
static inline Floats fma(Floats a, Floats b, Floats c) {
  return _mm256_fmadd_ps(a, b, c);
}
static inline Floats fms(Floats a, Floats b, Floats c) {
  return _mm256_fmsub_ps(a, b, c);
}
static inline Floats fnma(Floats a, Floats b, Floats c) {
  return _mm256_fnmadd_ps(a, b, c);
}
static inline Floats max(Floats a, Floats b) {
  return _mm256_max_ps(a, b);
}
static inline Floats min(Floats a, Floats b) {
  return _mm256_min_ps(a, b);
}

static inline Floats abs(Floats x) {
  return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), x);
}
static inline Floats copy_sign(Floats x, Floats sign) {
  const Floats sign_bit = _mm256_set1_ps(-0.0F);
  return _mm256_or_ps(_mm256_andnot_ps(sign_bit, x), _mm256_and_ps(sign_bit, sign));
}
static inline Floats if_less(Floats a, Floats b, Floats yes, Floats no) {
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
static inline Floats first_lanes(std::int64_t count, Floats x, Floats other) {
  return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(lane_mask(count)));
}
static inline Floats round_to_integer(Floats x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// In two steps: 2^n itself may be no float. The first is exact, so that the result is rounded once.
static inline Floats times_power_of_2(Floats x, Floats n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i rest = _mm256_sub_epi32(whole, half);
  const __m256i bias = _mm256_set1_epi32(127);
  const Floats first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const Floats second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(x, first), second);
}

static inline float sum_of_lanes(Floats x) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
static inline float max_of_lanes(Floats x) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

static inline float first_lane(Floats x) {
  return _mm256_cvtss_f32(x);
}
static inline Floats lane_numbers() {
  return _mm256_setr_ps(0.0F, 1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F, 7.0F);
}

// Three rounds: within pairs, within quarters, between halves.
static inline void transpose(Floats (&m)[8]) {
  Floats a[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps(m[i], m[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps(m[i], m[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const int from = i / 2 * 4 + i % 2;
    const __m256d low = _mm256_castps_pd(a[from]);
    const __m256d high = _mm256_castps_pd(a[from + 2]);
    m[2 * i] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high));
    m[2 * i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Floats upper = _mm256_permute2f128_ps(m[i], m[i + 4], 0x31);
    m[i] = _mm256_permute2f128_ps(m[i], m[i + 4], 0x20);
    m[i + 4] = upper;
  }
}

static inline Pairs load_pairs(const BFloat16* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
static inline Pairs broadcast_pair(const BFloat16* from) {
  std::int32_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return _mm256_set1_epi32(bits);
}
static inline Pairs round_to_pairs(Floats low, Floats high) {
  return _mm256_set_m128i(round_to_bfloat16(high), round_to_bfloat16(low));
}
static inline Pairs pair_up(Floats first, Floats second) {
  return _mm256_or_si256(_mm256_srli_epi32(_mm256_castps_si256(first), 16), _mm256_castps_si256(second));
}
static inline void store_pairs(BFloat16* to, Pairs pairs) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), pairs);
}
static inline void store_alternate(BFloat16* to, const BFloat16* from) {
  for (std::int64_t i = 0; i < kLanes; ++i) {
    to[2 * i] = from[i];
  }
}
static inline Pairs one_of_each(Pairs pairs, std::int64_t which) {
  return _mm256_and_si256(pairs, _mm256_set1_epi32(which == 0 ? 0x0000FFFF : static_cast<int>(0xFFFF0000U)));
}
static inline Floats first_of(Pairs pairs) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}
static inline Floats second_of(Pairs pairs) {
  return _mm256_castsi256_ps(one_of_each(pairs, 1));
}
static inline Floats dot(Pairs a, Pairs b, Floats c) {
  return fma(second_of(a), second_of(b), fma(first_of(a), first_of(b), c));
}

}  // namespace fastpaged::cpu::avx2
FASTPAGED_END_TARGET
