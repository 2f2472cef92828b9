// The activation functions, one element at a time.
#pragma once

#include "fastpaged/ops/params.h"
#include "fastpaged/ops/reference/erf.h"
#include "fastpaged/ops/reference/exp.h"
#include "fastpaged/ops/reference/tanh.h"

namespace fastpaged::reference {

inline float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1.0F + exp(-x));
    case Activation::kGelu:
      return 0.5F * x * (1.0F + erf(x * 0.707106781F));
    case Activation::kGeluTanh:
      return 0.5F * x * (1.0F + tanh(0.797884561F * (x + 0.044715F * x * x * x)));
    case Activation::kRelu:
      return x < 0.0F ? 0.0F : x;
  }
  return x;
}

}  // namespace fastpaged::reference
