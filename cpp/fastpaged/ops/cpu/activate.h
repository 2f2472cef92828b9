// The activation functions, a vector at a time.
#pragma once

#include <cstdint>

#include "fastpaged/ops/cpu/vector_math.h"
#include "fastpaged/ops/params.h"

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)
namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

static inline Floats activate(Activation activation, Floats x) {
  const Floats one = set1(1.0F);
  const Floats half = mul(x, set1(0.5F));
  switch (activation) {
    case Activation::kSilu:
      return div(x, add(one, exp(sub(zero(), x))));
    case Activation::kGelu:
      return mul(half, add(one, erf(mul(x, set1(0.707106781F)))));
    case Activation::kGeluTanh: {
      const Floats cube = mul(mul(x, x), x);
      return mul(half, add(one, tanh(mul(set1(0.797884561F), fma(set1(0.044715F), cube, x)))));
    }
    case Activation::kRelu:
      return max(zero(), x);
  }
  return x;
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
FASTPAGED_END_TARGET
