#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/row_math.h"
#include "fastpaged/ops/cpu/vector_ops.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

void add(const AddParams& params, ThreadPool& pool) {
  validate(params);
  const std::int64_t size = params.x.shape[1];
  for_each_row(pool, params.x.shape[0], size,
               [&](std::int64_t t) { add_to(params.x.row<float>(t), params.y.row<const float>(t), size); });
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
