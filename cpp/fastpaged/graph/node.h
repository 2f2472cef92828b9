// What a recorded forward pass is made of.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "fastpaged/base/tensor_view.h"
#include "fastpaged/ops/params.h"

namespace fastpaged {

enum class RowKind : std::uint8_t { kTokens, kSamples };
using BufferId = std::int32_t;

// A value of the forward pass: as many rows as the step has tokens or samples.
struct Buffer {
  RowKind rows = RowKind::kTokens;
  std::int64_t cols = 0;
  DType dtype = DType::kFloat32;
  bool written = false;       // by a recorded node
  std::int64_t head_dim = 0;  // of queries, [T, cols / head_dim, head_dim]; 0 for all else
  std::size_t offset = 0;     // in the arena, once finalized

  [[nodiscard]] std::int64_t row_bytes() const { return cols * static_cast<std::int64_t>(size_of(dtype)); }
};

using NodeParams = std::variant<EmbeddingParams, RmsNormParams, LinearParams, RotaryCacheWriteParams,
                                PagedAttentionParams, GatedActivationParams, GatherRowsParams>;

// One op call. In params, weights and constants are set for good when the node is recorded;
// buffers, batch arrays and the KV cache are filled in by every run.
struct Node {
  NodeParams params;
  std::optional<BufferId> input;     // none for embedding
  std::optional<BufferId> residual;  // rms_norm: added to input in place
  BufferId output = 0;
  std::int32_t layer = 0;  // rotary_cache_write, paged_attention: which part of the KV cache
};

}  // namespace fastpaged
