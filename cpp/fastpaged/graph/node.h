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
  bool folded = false;        // but that node, a linear, adds to another buffer instead: this one is not there
  std::int64_t head_dim = 0;  // of queries, [T, cols / head_dim, head_dim]; 0 for all else
  std::size_t offset = 0;     // in the arena, once finalized

  [[nodiscard]] std::int64_t row_bytes() const { return cols * static_cast<std::int64_t>(size_of(dtype)); }
};

using NodeParams = std::variant<EmbeddingParams, RmsNormParams, LayerNormParams, LinearParams, RotaryCacheWriteParams,
                                PagedAttentionParams, SoftCapParams, AddParams, GatherRowsParams>;

// What rotary_cache_write does to the heads of q and k before it hands them on; what is empty() is left out.
struct RotaryOptions {
  TensorView cos_sin{};   // [max_positions, rotary] float32, rotary even and at most head_dim
  TensorView q_norm{};    // [head_dim] float32; both norms or none
  TensorView k_norm{};    // [head_dim] float32
  float norm_eps = 0.0F;  // of the norms
};

struct AttentionOptions {
  float scale = 1.0F;
  float soft_cap = 0.0F;      // 0: none
  std::int32_t window = 0;    // 0: none
  TensorView alibi_slopes{};  // [Hq] float32, or empty()
};

// One op call. In params, weights and constants are set for good when the node is recorded;
// buffers, batch arrays and the KV cache are filled in by every run.
struct Node {
  NodeParams params;
  std::optional<BufferId> input;     // none for embedding
  std::optional<BufferId> residual;  // rms_norm, layer_norm, add: added to input in place
  BufferId output = 0;               // of soft_cap and add: their input, updated in place; linear may add to it
  std::int32_t layer = 0;            // rotary_cache_write, paged_attention: which part of the KV cache
};

}  // namespace fastpaged
