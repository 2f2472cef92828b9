// What every op table checks before it computes: ranks, shapes, dtypes, and the indices an op follows, the
// numbers it computes with. Each throws std::invalid_argument naming op and field. Nothing is checked again further in.
#pragma once

#include "fastpaged/ops/params.h"

namespace fastpaged {

constexpr std::int64_t kHeadDimStep = 16;
constexpr std::int64_t kMaxHeadDim = 256;
constexpr std::int64_t kMaxBlockSize = 256;

constexpr bool is_head_dim(std::int64_t size) {
  return size >= kHeadDimStep && size <= kMaxHeadDim && size % kHeadDimStep == 0;
}

void validate(const EmbeddingParams& params);
void validate(const RmsNormParams& params);
void validate(const LayerNormParams& params);
void validate(const LinearParams& params, const char* isa);  // isa: of the table that runs it
void validate(const RotaryCacheWriteParams& params);
void validate(const PagedAttentionParams& params);
void validate(const SoftCapParams& params);
void validate(const AddParams& params);
void validate(const GatherRowsParams& params);

}  // namespace fastpaged
