#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/vector_math.h"
#include "fastpaged/ops/cpu/vector_ops.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)
static void cap_row(float* x, float cap, std::int64_t size) {
  const Floats caps = set1(cap);
  for (std::int64_t i = 0; i < size; i += kLanes) {
    store(x + i, mul(caps, tanh(div(load(x + i, size - i), caps))), size - i);
  }
}
FASTPAGED_END_TARGET

void soft_cap(const SoftCapParams& params, ThreadPool& pool) {
  validate(params);
  for_each_row(pool, params.x.shape[0], params.x.shape[1],
               [&](std::int64_t t) { cap_row(params.x.row<float>(t), params.cap, params.x.shape[1]); });
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
