#include "fastpaged/ops/cpu/ops.h"
#include "fastpaged/ops/cpu/vector.h"
#include "fastpaged/ops/cpu/vector_ops.h"
#include "fastpaged/ops/cpu/weight_panels.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

OpTable table() {
  return {.isa = kIsaName,
          .weight_layout = kWeightLayout,
          .pack_linear = [](std::span<const TensorView> parts, DType dtype,
                            ThreadPool& pool) { return pack_panels(parts, dtype, kIsaName, false, pool); },
          .pack_gated_linear = [](std::span<const TensorView> parts, DType dtype,
                                  ThreadPool& pool) { return pack_panels(parts, dtype, kIsaName, true, pool); },
          .packed_bytes = &bytes_of_panels,
          .embedding = &embedding,
          .rms_norm = &rms_norm,
          .layer_norm = &layer_norm,
          .linear = &linear,
          .rotary_cache_write = &rotary_cache_write,
          .paged_attention = &paged_attention,
          .soft_cap = &soft_cap,
          .add = &add,
          .gather_rows = &gather_rows,
          .logit_passes = &logit_passes()};
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
