// LogitPasses for FASTPAGED_VECTOR_ISA.
#include "fastpaged/ops/logit_passes.h"

#include "fastpaged/ops/cpu/ops.h"
#include "fastpaged/ops/cpu/vector.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {
namespace logits {  // whose vectors are not those of vector.h

constexpr int kLanes = FASTPAGED_LANES_OF(FASTPAGED_VECTOR_ISA);

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)
#include "fastpaged/ops/logit_loops.h"
FASTPAGED_END_TARGET

}  // namespace logits

const LogitPasses& logit_passes() {
  static constexpr LogitPasses kPasses = {
      .block_maxima = &logits::block_maxima, .weigh = &logits::weigh, .count_from = &logits::count_from};
  return kPasses;
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
