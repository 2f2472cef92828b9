// The ops of one vector instruction set, a file per op. Callable only where cpu_features() allows.
#pragma once

#include "fastpaged/base/thread_pool.h"
#include "fastpaged/ops/params.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

void embedding(const EmbeddingParams& params, ThreadPool& pool);
void rms_norm(const RmsNormParams& params, ThreadPool& pool);
void layer_norm(const LayerNormParams& params, ThreadPool& pool);
void linear(const LinearParams& params, ThreadPool& pool);
// linear, without the check. REQUIRES: valid params, a weight from pack_panels (weight_panels.h).
void multiply_panels(const LinearParams& params, ThreadPool& pool);
void rotary_cache_write(const RotaryCacheWriteParams& params, ThreadPool& pool);
void paged_attention(const PagedAttentionParams& params, ThreadPool& pool);
void soft_cap(const SoftCapParams& params, ThreadPool& pool);
void add(const AddParams& params, ThreadPool& pool);
void gather_rows(const GatherRowsParams& params, ThreadPool& pool);

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
