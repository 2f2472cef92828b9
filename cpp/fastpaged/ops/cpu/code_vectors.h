// Vectors of 8-bit KV codes (kv_codes.h), of the instruction set a file is compiled for:
//
//   widen<kCode>(from)             kLanes codes as Floats: what they are worth, times kCodeUnit<kCode>; exact
//   narrow<kCode>(x)               the codes nearest to kLanes numbers, one in each Ints; x is no NaN
//   store_codes(to, codes)         kLanes of them, one byte each
//   store_alternate(to, from)      kLanes codes to to[0], to[2], ...; those between are not touched
//   spread_pairs(from, spread)     kKeyTile floats, each twice, over two or four vectors
//   spread_two(from)               two floats, over and over
//
// Include it after everything else, as vector.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "fastpaged/base/tensor_view.h"
#include "fastpaged/ops/cpu/vector.h"
#include "fastpaged/ops/kv_codes.h"
#include "fastpaged/ops/kv_layout.h"

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)
namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

using Ints = std::int32_t __attribute__((vector_size(sizeof(Floats))));

// fp8 is read as the upper bits of a float16, which has one more bit of exponent than fp8_e4m3.
template <DType kCode>
constexpr float kCodeUnit = kCode == DType::kFp8E4M3 ? 0x1p-8F : 1.0F;

#if FASTPAGED_LANES_OF(FASTPAGED_VECTOR_ISA) == 8
template <DType kCode>
static inline Floats widen(const std::uint8_t* from) {
  const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  if constexpr (kCode == DType::kInt8) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
  } else if constexpr (kCode == DType::kFp8E5M2) {
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(codes), 8));
  } else {
    const __m128i shifted = _mm_slli_epi16(_mm_cvtepi8_epi16(codes), 7);  // with a second sign
    return _mm256_cvtph_ps(_mm_and_si128(shifted, _mm_set1_epi16(static_cast<std::int16_t>(0xBFFF))));
  }
}
static inline Ints nearest_integers(Floats x) {
  return reinterpret_cast<Ints>(_mm256_cvtps_epi32(x));
}
static inline void store_codes(std::uint8_t* to, Ints codes) {
  const __m256i bytes = reinterpret_cast<__m256i>(codes & 0xFF);
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
}
static inline void store_alternate(std::uint8_t* to, const std::uint8_t* from) {
  for (std::int64_t i = 0; i < kLanes; ++i) {
    to[2 * i] = from[i];
  }
}
static inline void spread_pairs(const float* from, Floats (&spread)[4]) {
  const __m256i low = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  const __m256i high = _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
  spread[0] = _mm256_permutevar8x32_ps(load(from), low);
  spread[1] = _mm256_permutevar8x32_ps(load(from), high);
  spread[2] = _mm256_permutevar8x32_ps(load(from + 8), low);
  spread[3] = _mm256_permutevar8x32_ps(load(from + 8), high);
}
static inline Floats spread_two(const float* from) {
  double both;
  std::memcpy(&both, from, sizeof(both));
  return _mm256_castpd_ps(_mm256_set1_pd(both));
}
#else
template <DType kCode>
static inline Floats widen(const std::uint8_t* from) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  if constexpr (kCode == DType::kInt8) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
  } else if constexpr (kCode == DType::kFp8E5M2) {
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8));
  } else {
    const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);  // with a second sign
    return _mm512_cvtph_ps(_mm256_and_si256(shifted, _mm256_set1_epi16(static_cast<std::int16_t>(0xBFFF))));
  }
}
static inline Ints nearest_integers(Floats x) {
  return reinterpret_cast<Ints>(_mm512_cvtps_epi32(x));
}
static inline void store_codes(std::uint8_t* to, Ints codes) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(codes)));
}
static inline void store_alternate(std::uint8_t* to, const std::uint8_t* from) {
  const __m256i first = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  _mm256_mask_storeu_epi8(to, 0x55555555U, first);
}
static inline void spread_pairs(const float* from, Floats (&spread)[2]) {
  const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  spread[0] = _mm512_permutexvar_ps(low, load(from));
  spread[1] = _mm512_permutexvar_ps(_mm512_add_epi32(low, _mm512_set1_epi32(8)), load(from));
}
static inline Floats spread_two(const float* from) {
  double both;
  std::memcpy(&both, from, sizeof(both));
  return _mm512_castpd_ps(_mm512_set1_pd(both));
}
#endif

static inline Ints bits_of(Floats x) {
  return reinterpret_cast<Ints>(x);
}

// For kMantissa bits of mantissa and a bias: the upper bits of the float32, rounded, with another bias; below the
// normal numbers the sum with one so large that its last place is the smallest code.
template <int kMantissa, int kBias>
static inline Ints narrow_fp8(Floats x, float largest) {
  constexpr int kDropped = 23 - kMantissa;
  constexpr float kUnit = kBias == 7 ? 0x1p-9F : 0x1p-16F;  // of the smallest code
  constexpr float kLeastNormal = kUnit * (1 << kMantissa);
  const Floats magnitude = min(abs(x), set1(largest));
  const Ints bits = bits_of(magnitude);
  const Ints rounded = bits + (((1 << (kDropped - 1)) - 1) + ((bits >> kDropped) & 1));
  const Ints normal = (rounded >> kDropped) - ((127 - kBias) << kMantissa);
  const Floats shifter = set1(kUnit * 0x1p23F);
  const Ints small = bits_of(add(magnitude, shifter)) - bits_of(shifter);
  const Floats code =
      if_less(magnitude, set1(kLeastNormal), reinterpret_cast<Floats>(small), reinterpret_cast<Floats>(normal));
  return bits_of(code) | ((bits_of(x) >> 24) & 0x80);
}

template <DType kCode>
static inline Ints narrow(Floats x) {
  constexpr float kLargest = largest_code(kCode);
  if constexpr (kCode == DType::kInt8) {
    return nearest_integers(max(min(x, set1(kLargest)), set1(-kLargest)));
  } else if constexpr (kCode == DType::kFp8E4M3) {
    return narrow_fp8<3, 7>(x, kLargest);
  } else {
    return narrow_fp8<2, 15>(x, kLargest);
  }
}

// As fastpaged::quantize. REQUIRES: size is a multiple of kLanes.
template <DType kCode>
static inline float quantize_vector(const float* x, std::int64_t size, std::uint8_t* codes) {
  Floats largest = zero();
  Floats doubt = zero();  // NaN where one of the numbers is not finite
  for (std::int64_t i = 0; i < size; i += kLanes) {
    largest = max(abs(load(x + i)), largest);
    doubt = fma(load(x + i), zero(), doubt);
  }
  const float amax = max_of_lanes(largest);
  const bool all_finite = sum_of_lanes(doubt) == 0.0F;
  if (!all_finite || amax < kLeastKVMagnitude) {
    std::memset(codes, 0, static_cast<std::size_t>(size));
    return all_finite ? 0.0F : __builtin_nanf("");
  }
  const float scale = (amax < kMostKVMagnitude ? amax : kMostKVMagnitude) / largest_code(kCode);
  for (std::int64_t i = 0; i < size; i += kLanes) {
    store_codes(codes + i, narrow<kCode>(div(load(x + i), set1(scale))));
  }
  return scale;
}

static inline float quantize_vector(DType dtype, const float* x, std::int64_t size, std::uint8_t* codes) {
  return dtype == DType::kInt8      ? quantize_vector<DType::kInt8>(x, size, codes)
         : dtype == DType::kFp8E4M3 ? quantize_vector<DType::kFp8E4M3>(x, size, codes)
                                    : quantize_vector<DType::kFp8E5M2>(x, size, codes);
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
FASTPAGED_END_TARGET
