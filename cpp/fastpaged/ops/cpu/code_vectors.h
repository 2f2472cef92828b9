// Vectors of 8-bit KV codes (kv_codes.h), of the instruction set a file is compiled for:
//
//   widen<kCode>(from)             kLanes codes as Floats: what they are worth, times kCodeUnit<kCode>; exact
//   narrow<kCode>(x)               the codes nearest to kLanes numbers, one in each Ints; x is no NaN
//   store_codes(to, codes)         kLanes of them, one byte each
//   store_alternate(to, from)      kLanes codes to to[0], to[2], ...; those between are not touched
//   key_scales(from, unit)         the scales of kLanes keys, for pairs of neighbours in D,
//   value_scales(from, unit)       and of two values, for pairs of these; times unit = 1 / kCodeUnit<kCode>
//   widen_pairs<kCode>(from, scales)  2 kLanes codes times their scales, rounded. REQUIRES: products are flushed
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
// Of even codes and of odd ones, which are the halves of words.
struct PairScales {
  Floats even;
  Floats odd;
};
// A NaN has the bits that rounding keeps a NaN.
static inline Floats plain_nan(Floats x) {
  return _mm256_blendv_ps(x, set1(__builtin_nanf("")), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
static inline PairScales key_scales(const float* from, float unit) {
  const Floats scales = plain_nan(mul(load(from), set1(unit)));
  return {scales, scales};
}
static inline PairScales value_scales(const float* from, float unit) {
  return {plain_nan(set1(from[0] * unit)), plain_nan(set1(from[1] * unit))};
}
template <DType kCode>
static inline Floats widen_even(__m128i words) {
  if constexpr (kCode == DType::kInt8) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 24), 24));
  } else if constexpr (kCode == DType::kFp8E5M2) {
    return _mm256_cvtph_ps(_mm_slli_epi16(words, 8));
  } else {
    const __m128i shifted = _mm_srai_epi16(_mm_slli_epi16(words, 8), 1);
    return _mm256_cvtph_ps(_mm_and_si128(shifted, _mm_set1_epi16(static_cast<std::int16_t>(0xBFFF))));
  }
}
template <DType kCode>
static inline Floats widen_odd(__m128i words) {
  if constexpr (kCode == DType::kInt8) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_srai_epi16(words, 8)));
  } else if constexpr (kCode == DType::kFp8E5M2) {
    return _mm256_cvtph_ps(_mm_and_si128(words, _mm_set1_epi16(static_cast<std::int16_t>(0xFF00))));
  } else {
    const __m128i shifted = _mm_srai_epi16(words, 1);
    return _mm256_cvtph_ps(_mm_and_si128(shifted, _mm_set1_epi16(static_cast<std::int16_t>(0xBF80))));
  }
}
// To the nearest bfloat16, in the upper halves. x is no denormal, for products are flushed, and if a NaN a plain one.
static inline __m256i round_product(Floats x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
}
template <DType kCode>
static inline Pairs widen_pairs(const std::uint8_t* from, const PairScales& scales) {
  const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const __m256i even = round_product(mul(widen_even<kCode>(words), scales.even));
  const __m256i odd = round_product(mul(widen_odd<kCode>(words), scales.odd));
  return _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xAA);
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
// Of the first codes and of the last ones.
struct PairScales {
  Floats low;
  Floats high;
};
static inline PairScales key_scales(const float* from, float unit) {
  const Floats scales = mul(load(from), set1(unit));
  const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  return {_mm512_permutexvar_ps(low, scales), _mm512_permutexvar_ps(high, scales)};
}
static inline PairScales value_scales(const float* from, float unit) {
  double both;
  std::memcpy(&both, from, sizeof(both));
  const Floats scales = mul(_mm512_castpd_ps(_mm512_set1_pd(both)), set1(unit));
  return {scales, scales};
}
template <DType kCode>
static inline Pairs widen_pairs(const std::uint8_t* from, const PairScales& scales) {
  return round_to_pairs(mul(widen<kCode>(from), scales.low), mul(widen<kCode>(from + kLanes), scales.high));
}
#endif

static inline Ints bits_of(Floats x) {
  return reinterpret_cast<Ints>(x);
}

// Of fp8. Numbers below kLeastNormal are multiples of kUnit: their sum with kShifter has that as its last place.
template <DType kCode>
struct Fp8 {
  static constexpr bool kIsE4M3 = kCode == DType::kFp8E4M3;
  static constexpr int kMantissa = kIsE4M3 ? 3 : 2;
  static constexpr int kBias = kIsE4M3 ? 7 : 15;
  static constexpr int kDropped = 23 - kMantissa;  // bits of a float32's mantissa
  static constexpr float kUnit = kIsE4M3 ? 0x1p-9F : 0x1p-16F;
  static constexpr float kLeastNormal = kUnit * (1 << kMantissa);
  static constexpr float kShifter = kUnit * 0x1p23F;
};

// The nearest magnitude of a code, ties to the even one.
template <DType kCode>
static inline Floats round_to_fp8(Floats x) {
  using Of = Fp8<kCode>;
  const Floats magnitude = min(abs(x), set1(largest_code(kCode)));
  const Ints bits = bits_of(magnitude);
  const Ints rounded = bits + (((1 << (Of::kDropped - 1)) - 1) + ((bits >> Of::kDropped) & 1));
  const Floats normal = reinterpret_cast<Floats>((rounded >> Of::kDropped) << Of::kDropped);
  const Floats small = sub(add(magnitude, set1(Of::kShifter)), set1(Of::kShifter));
  return if_less(magnitude, set1(Of::kLeastNormal), small, normal);
}

// REQUIRES: a magnitude of a code.
template <DType kCode>
static inline Ints code_of_fp8(Floats magnitude) {
  using Of = Fp8<kCode>;
  const Ints normal = (bits_of(magnitude) >> Of::kDropped) - ((127 - Of::kBias) << Of::kMantissa);
  const Ints small = bits_of(add(magnitude, set1(Of::kShifter))) - bits_of(set1(Of::kShifter));
  return bits_of(
      if_less(magnitude, set1(Of::kLeastNormal), reinterpret_cast<Floats>(small), reinterpret_cast<Floats>(normal)));
}

template <DType kCode>
static inline Ints narrow(Floats x) {
  if constexpr (kCode == DType::kInt8) {
    constexpr float kLargest = largest_code(kCode);
    return nearest_integers(max(min(x, set1(kLargest)), set1(-kLargest)));
  } else {
    return code_of_fp8<kCode>(round_to_fp8<kCode>(x)) | ((bits_of(x) >> 24) & 0x80);
  }
}

// Of fp8, in kKVErrorSums sums. No codes need be made, and signs do not matter.
template <DType kCode>
static inline void squared_errors(const float* x, std::int64_t size, float scale, float* parts) {
  constexpr std::int64_t kVectors = kKVErrorSums / kLanes;
  Floats sums[kVectors];
  for (Floats& sum : sums) {
    sum = zero();
  }
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const Floats wanted = abs(div(load(x + i), set1(scale)));
    const Floats off = sub(round_to_fp8<kCode>(wanted), wanted);
    Floats& sum = sums[i / kLanes % kVectors];
    sum = add(sum, mul(off, off));
  }
  for (std::int64_t i = 0; i < kVectors; ++i) {
    store(parts + i * kLanes, sums[i]);
  }
}

template <DType kCode>
static inline float scale_of(const float* x, std::int64_t size, float amax) {
  if constexpr (kCode == DType::kInt8) {
    return amax / largest_code(kCode);
  } else {
    constexpr auto kChoices = fp8_scale_choices(kCode);
    constexpr std::int64_t kNumChoices = kChoices.size();
    float parts[kNumChoices][kKVErrorSums];
    for (std::int64_t i = 0; i < kNumChoices; ++i) {
      squared_errors<kCode>(x, size, amax / kChoices[i].amax_code, parts[i]);
    }
    float errors[kNumChoices] = {};
    for (std::int64_t part = 0; part < kKVErrorSums; ++part) {  // side by side: each waits for its last addition
      for (std::int64_t i = 0; i < kNumChoices; ++i) {
        errors[i] += parts[i][part];
      }
    }
    float scale = 0.0F;
    float least = __builtin_inff();
    for (std::int64_t i = 0; i < kNumChoices; ++i) {
      if (const float error = errors[i] * kChoices[i].weight; error < least) {
        least = error;
        scale = amax / kChoices[i].amax_code;
      }
    }
    return scale;
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
  const float scale = scale_of<kCode>(x, size, amax < kMostKVMagnitude ? amax : kMostKVMagnitude);
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
