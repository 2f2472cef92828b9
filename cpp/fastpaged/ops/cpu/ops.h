// The AVX-512 and AMX ops, a file per op. Callable only where cpu_features() allows.
#pragma once

#include <span>

#include "fastpaged/base/thread_pool.h"
#include "fastpaged/ops/packed_linear.h"
#include "fastpaged/ops/params.h"

namespace fastpaged::cpu {

void embedding(const EmbeddingParams& params, ThreadPool& pool);
void rms_norm(const RmsNormParams& params, ThreadPool& pool);
void rotary_cache_write(const RotaryCacheWriteParams& params, ThreadPool& pool);
void paged_attention(const PagedAttentionParams& params, ThreadPool& pool);
void gated_activation(const GatedActivationParams& params, ThreadPool& pool);
void gather_rows(const GatherRowsParams& params, ThreadPool& pool);

PackedLinear pack_linear_avx512(std::span<const TensorView> parts, DType dtype, ThreadPool& pool);
PackedLinear pack_linear_amx(std::span<const TensorView> parts, DType dtype, ThreadPool& pool);
PackedLinear pack_linear_amx_emulated(std::span<const TensorView> parts, DType dtype, ThreadPool& pool);
void linear_avx512(const LinearParams& params, ThreadPool& pool);
void linear_amx(const LinearParams& params, ThreadPool& pool);
void linear_amx_emulated(const LinearParams& params, ThreadPool& pool);

}  // namespace fastpaged::cpu
