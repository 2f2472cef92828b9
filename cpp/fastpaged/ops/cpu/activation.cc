#include "fastpaged/ops/cpu/activate.h"
#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/vector_ops.h"
#include "fastpaged/ops/element.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

void activation(const ActivationParams& params, ThreadPool& pool) {
  validate(params);
  const std::int64_t size = params.out.shape[1];
  with_element(params.out.dtype, [&](auto element) {
    for_each_row(pool, params.out.shape[0], size, [&](std::int64_t t) {
      activate_row(params.activation, params.x.row<const float>(t), nullptr, size,
                   params.out.row<decltype(element)>(t));
    });
  });
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
