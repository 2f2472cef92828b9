// ModelGraph: recording what touches the KV cache.
#include <algorithm>
#include <cmath>
#include <string>

#include "fastpaged/base/check.h"
#include "fastpaged/graph/model_graph.h"
#include "fastpaged/graph/record_checks.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged {
namespace {

void require_options(const RotaryOptions& options, std::int64_t head_dim) {
  constexpr const char* kOp = "rotary_cache_write";
  if (!options.cos_sin.empty()) {
    require_tensor(kOp, "cos_sin", options.cos_sin, DType::kFloat32, 2);
    const std::int64_t rotary = options.cos_sin.shape[1];
    require(rotary > 0 && rotary % 2 == 0 && rotary <= head_dim, [&] {
      return said(kOp, "cos_sin") +
             " must have an even number of columns, at most head_dim = " + std::to_string(head_dim) + ", got " +
             std::to_string(rotary);
    });
  }
  require(options.q_norm.empty() == options.k_norm.empty(),
          [&] { return said(kOp, "q_norm") + " and k_norm must be given both or neither"; });
  if (!options.q_norm.empty()) {
    require_vector(kOp, "q_norm must have as many elements as a head", options.q_norm, head_dim);
    require_vector(kOp, "k_norm must have as many elements as a head", options.k_norm, head_dim);
    require(std::isfinite(options.norm_eps) && options.norm_eps >= 0.0F, [&] {
      return said(kOp, "norm_eps") + " must be finite and >= 0, got " + std::to_string(options.norm_eps);
    });
  }
}

void require_options(const AttentionOptions& options, std::int64_t num_heads) {
  constexpr const char* kOp = "paged_attention";
  require(std::isfinite(options.scale),
          [&] { return said(kOp, "scale") + " must be finite, got " + std::to_string(options.scale); });
  require(std::isfinite(options.soft_cap) && options.soft_cap >= 0.0F,
          [&] { return said(kOp, "soft_cap") + " must be finite and >= 0, got " + std::to_string(options.soft_cap); });
  require(options.window >= 0,
          [&] { return said(kOp, "window") + " must be >= 0, got " + std::to_string(options.window); });
  if (!options.alibi_slopes.empty()) {
    require_vector(kOp, "alibi_slopes must have one element for each head of q", options.alibi_slopes, num_heads);
  }
}

}  // namespace

// The KV cache of the whole graph has one shape: the first op that knows it fixes it. One that is bound already fixes
// the number of layers too.
void ModelGraph::set_kv_shape(const char* op, std::int32_t layer, std::int64_t num_kv_heads, std::int64_t head_dim) {
  require(layer >= 0, [&] { return said(op, "layer") + " must be >= 0, got " + std::to_string(layer); });
  require(kv_cache_.empty() || layer < kv_cache_.shape[1], [&] {
    return said(op, "layer") + " must be one of the " + std::to_string(kv_cache_.shape[1]) +
           " layers of the KV cache that is bound, from 0 on, got " + std::to_string(layer);
  });
  if (num_layers_ == 0) {
    num_kv_heads_ = num_kv_heads;
    head_dim_ = head_dim;
  }
  require_equal(op, "head_dim must be the same in every layer", head_dim_, head_dim);
  require_equal(op, "num_kv_heads must be the same in every layer", num_kv_heads_, num_kv_heads);
  num_layers_ = std::max(num_layers_, std::int64_t{layer} + 1);
}

void ModelGraph::rotary_cache_write(BufferId qkv, std::int32_t layer, std::int64_t num_kv_heads, std::int64_t head_dim,
                                    const RotaryOptions& options, BufferId q) {
  constexpr const char* kOp = "rotary_cache_write";
  const Buffer& source = readable(kOp, "qkv", qkv, DType::kFloat32);
  require(is_head_dim(head_dim), [&] {
    return said(kOp, "head_dim") + " must be a multiple of " + std::to_string(kHeadDimStep) + ", at most " +
           std::to_string(kMaxHeadDim) + ", got " + std::to_string(head_dim);
  });
  require_options(options, head_dim);
  const std::int64_t q_cols = at(kOp, "q", q).cols;
  // No more KV heads than the buffer has columns: their product with head_dim does not overflow.
  require(num_kv_heads > 0 && num_kv_heads <= source.cols && q_cols % (num_kv_heads * head_dim) == 0 &&
              source.cols == q_cols + 2 * num_kv_heads * head_dim,
          [&] {
            return said(kOp, "qkv") +
                   " must have (Hq + 2 Hkv) * D columns and q Hq * D, with D = " + std::to_string(head_dim) +
                   ", Hkv = " + std::to_string(num_kv_heads) + " and Hq a multiple of Hkv, got " +
                   std::to_string(source.cols) + " and " + std::to_string(q_cols);
          });
  Buffer& target = writable(kOp, "q", q, activation_dtype_, RowKind::kTokens, q_cols);
  require(source.rows == RowKind::kTokens, [&] { return said(kOp, "qkv") + " must have token rows, got samples"; });
  set_kv_shape(kOp, layer, num_kv_heads, head_dim);
  target.written = true;
  target.head_dim = head_dim;
  if (!options.cos_sin.empty()) {
    limit_positions(options.cos_sin.shape[0]);
  }
  const RotaryCacheWriteParams params{.qkv = {},
                                      .slot_mapping = {},
                                      .cos_sin = options.cos_sin,
                                      .q_norm = options.q_norm,
                                      .k_norm = options.k_norm,
                                      .kv_cache = {},
                                      .q = {},
                                      .norm_eps = options.norm_eps};
  nodes_.push_back({.params = params, .input = qkv, .residual = {}, .output = q, .layer = layer});
}

void ModelGraph::paged_attention(BufferId q, std::int32_t layer, const AttentionOptions& options, BufferId out) {
  constexpr const char* kOp = "paged_attention";
  const Buffer& source = readable(kOp, "q", q, activation_dtype_);
  require(source.head_dim > 0, [&] {
    return said(kOp, "q") + " must come from rotary_cache_write, buffer " + std::to_string(q) + " does not";
  });
  require_options(options, source.cols / source.head_dim);
  Buffer& target = writable(kOp, "out", out, activation_dtype_, RowKind::kTokens, source.cols);
  set_kv_shape(kOp, layer, num_kv_heads_, source.head_dim);
  target.written = true;
  const PagedAttentionParams params{.q = {},
                                    .kv_cache = {},
                                    .query_start = {},
                                    .context_lens = {},
                                    .block_tables = {},
                                    .alibi_slopes = options.alibi_slopes,
                                    .out = {},
                                    .scale = options.scale,
                                    .soft_cap = options.soft_cap,
                                    .window = options.window};
  nodes_.push_back({.params = params, .input = q, .residual = {}, .output = out, .layer = layer});
}

}  // namespace fastpaged
