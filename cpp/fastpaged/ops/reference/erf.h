// erf for float32, the same bits everywhere.
#pragma once

#include <cmath>

#include "fastpaged/ops/reference/exp.h"

namespace fastpaged::reference {

// Within 1e-6: near 0 a polynomial fitted to erf(x) / x, beyond it 1 - e^(-x^2) p(1 / (1 + x / 2)), p fitted to
// erfc(x) e^(x^2). NaN stays NaN.
inline float erf(float x) {
  const float size = std::fabs(x);
  const float z = x * x;
  if (size < 1.0F) {
    float sum = 7.85385773e-5F;
    for (const float coefficient :
         {-0.000801019253F, 0.00518832756F, -0.0268538119F, 0.112835851F, -0.376126258F, 1.12837917F}) {
      sum = sum * z + coefficient;
    }
    return x * sum;
  }
  const float t = 1.0F / (1.0F + 0.5F * size);
  float sum = 0.0808911166F;
  for (const float coefficient : {-0.185040398F, 0.0250598788F, 0.105343002F, 0.158041188F, 0.252967425F, 0.280990762F,
                                  0.282199408F, -4.10342495e-06F}) {
    sum = sum * t + coefficient;
  }
  return std::copysign(1.0F - exp(-z) * sum, x);
}

}  // namespace fastpaged::reference
