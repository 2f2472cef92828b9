// The reference ops: plain loops in portable C++, a file per op, written once over the activation
// dtype. They are the judges of the fast ones.
// Sums run in index order, multiply and add apart, so that their bits are the same with every compiler and CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fastpaged/base/thread_pool.h"
#include "fastpaged/ops/packed_linear.h"
#include "fastpaged/ops/params.h"

namespace fastpaged::reference {

// OpTable::weight_layout: to be counted up with every change of the bytes that pack_linear makes.
constexpr const char* kWeightLayout = "rows16-1";
PackedLinear pack_linear(std::span<const TensorView> parts, DType dtype, ThreadPool& pool);
PackedLinear pack_gated_linear(std::span<const TensorView> parts, DType dtype, ThreadPool& pool);
std::size_t packed_bytes(std::int64_t out_features, std::int64_t in_features, DType dtype, bool gated);
void embedding(const EmbeddingParams& params, ThreadPool& pool);
void rms_norm(const RmsNormParams& params, ThreadPool& pool);
void layer_norm(const LayerNormParams& params, ThreadPool& pool);
void linear(const LinearParams& params, ThreadPool& pool);
void rotary_cache_write(const RotaryCacheWriteParams& params, ThreadPool& pool);
void paged_attention(const PagedAttentionParams& params, ThreadPool& pool);
void soft_cap(const SoftCapParams& params, ThreadPool& pool);
void add(const AddParams& params, ThreadPool& pool);
void gather_rows(const GatherRowsParams& params, ThreadPool& pool);

}  // namespace fastpaged::reference
