// Functions of every lane, from the few of vector.h: the same steps in float32 for every instruction set.
#pragma once

#include "fastpaged/ops/cpu/vector.h"

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)
namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

// coefficients[0] + coefficients[1] x + ..., by Horner's rule.
template <int kCount>
static inline Floats polynomial(Floats x, const float (&coefficients)[kCount]) {
  Floats sum = set1(coefficients[kCount - 1]);
#pragma GCC unroll 8
  for (int i = kCount - 2; i >= 0; --i) {
    sum = fma(sum, x, set1(coefficients[i]));
  }
  return sum;
}

// e^x within 2 ulp; NaN stays NaN; results below the smallest normal number are 0.
static inline Floats exp(Floats x) {
  constexpr float kTaylor[] = {1.0F,         1.0F,          0.5F,          1.0F / 6.0F,
                               1.0F / 24.0F, 1.0F / 120.0F, 1.0F / 720.0F, 1.0F / 5040.0F};
  // A bound comes first: max and min return their second operand when either is NaN.
  x = max(set1(-126.0F), min(set1(126.0F), x));
  const Floats n = round_to_integer(mul(x, set1(1.44269504F)));
  // ln 2 in two parts: n * high is exact.
  const Floats r = fnma(n, set1(1.42860677e-6F), fnma(n, set1(0.693145752F), x));
  return times_power_of_2(polynomial(r, kTaylor), n);
}

// 2^x for x <= 0; NaN stays NaN; results below the smallest normal number are 0.
template <int kCount>
static inline Floats exp2_by(Floats x, const float (&coefficients)[kCount]) {
  x = max(set1(-150.0F), x);
  const Floats n = round_to_integer(x);
  return times_power_of_2(polynomial(sub(x, n), coefficients), n);
}

// Within 2 ulp; 2^0 is 1.
static inline Floats exp2(Floats x) {
  constexpr float kMinimax[] = {1.0F, 0.693147004F, 0.240222424F, 0.0555073358F, 0.00967151299F, 0.00132647273F};
  return exp2_by(x, kMinimax);
}

// Within a part in 2^18, for what is rounded to bfloat16; 2^0 is 1.
static inline Floats exp2_coarse(Floats x) {
  constexpr float kMinimax[] = {1.0F, 0.693124175F, 0.240240991F, 0.0559064262F, 0.00958285295F};
  return exp2_by(x, kMinimax);
}

// Within 4 ulp; NaN stays NaN, zero its sign. x + x^3 P(x^2) near 0, where 1 - 2 / (e^2x + 1) would lose its digits.
static inline Floats tanh(Floats x) {
  constexpr float kNearZero[] = {-0.333333284F, 0.133327827F, -0.0538524948F, 0.0210036356F, -0.00610494148F};
  const Floats size = abs(x);
  const Floats square = mul(x, x);
  const Floats near_zero = fma(mul(square, x), polynomial(square, kNearZero), x);
  const Floats rest = div(set1(2.0F), add(exp(add(size, size)), set1(1.0F)));
  return copy_sign(if_less(size, set1(0.625F), near_zero, sub(set1(1.0F), rest)), x);
}

// Within 1.5e-7; NaN stays NaN. x P(x^2) up to 1; beyond, 1 - e^Q(|x|), which is 1 from 4 on.
static inline Floats erf(Floats x) {
  constexpr float kNearZero[] = {1.12837911F,    -0.37612626F,   0.112835974F,  -0.0268543288F,
                                 0.00518931216F, -0.0008018855F, 7.8824975e-05F};
  constexpr float kLogOfRest[] = {-0.000756968628F, -1.1259259F,     -0.639093339F,   -0.103318982F,
                                  0.022621986F,     -0.00343686761F, 0.000317572034F, -1.33093909e-05F};
  const Floats size = min(set1(4.0F), abs(x));
  const Floats square = mul(x, x);
  const Floats far = sub(set1(1.0F), exp(polynomial(size, kLogOfRest)));
  return if_less(size, set1(1.0F), mul(x, polynomial(square, kNearZero)), copy_sign(far, x));
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
FASTPAGED_END_TARGET
