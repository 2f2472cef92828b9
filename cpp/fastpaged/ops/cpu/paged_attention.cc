// Paged attention with vectors.
#include "fastpaged/ops/cpu/attention_run.h"
#include "fastpaged/ops/cpu/attention_span.h"
#include "fastpaged/ops/cpu/vector_ops.h"
#include "fastpaged/ops/element.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

void paged_attention(const PagedAttentionParams& params, ThreadPool& pool) {
  validate(params);
  with_element(params.q.dtype, [&](auto element) { attend_all<SpanAttention<decltype(element)>>(params, pool); });
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
