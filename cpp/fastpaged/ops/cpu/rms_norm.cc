#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/row_math.h"
#include "fastpaged/ops/cpu/vector_ops.h"
#include "fastpaged/ops/element.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

void rms_norm(const RmsNormParams& params, ThreadPool& pool) {
  validate(params);
  const std::int64_t hidden = params.x.shape[1];
  with_element(params.out.dtype, [&](auto element) {
    for_each_row(pool, params.x.shape[0], hidden, [&](std::int64_t t) {
      auto* x = params.x.row<float>(t);
      if (!params.residual.empty()) {
        add_to(x, params.residual.row<const float>(t), hidden);
      }
      rms_normalize(x, params.weight.ptr<const float>(), params.eps, hidden, params.out.row<decltype(element)>(t));
    });
  });
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
