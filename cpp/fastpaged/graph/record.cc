// ModelGraph, first half: recording, with every shape checked where it is written down.
#include <algorithm>
#include <string>

#include "fastpaged/base/check.h"
#include "fastpaged/graph/model_graph.h"
#include "fastpaged/ops/shape_check.h"

namespace fastpaged {
namespace {

constexpr std::int64_t kMaxCols = std::int64_t{1} << 40;  // so that no count of bytes of a row overflows

std::string said(const char* op, const char* argument) {
  return std::string(op) + ": " + argument;
}

void require_equal(const char* op, const char* what, std::int64_t expected, std::int64_t given) {
  require(given == expected,
          [&] { return said(op, what) + " = " + std::to_string(expected) + ", got " + std::to_string(given); });
}

void require_tensor(const char* op, const char* argument, const TensorView& tensor, DType dtype, int rank) {
  require(!tensor.empty() && tensor.dtype == dtype && tensor.rank == rank && tensor.strides[rank - 1] == 1, [&] {
    return said(op, argument) + " must be a " + name_of(dtype) + " array of rank " + std::to_string(rank) +
           " with dense rows, got " + name_of(tensor.dtype) + " of rank " + std::to_string(tensor.rank);
  });
}

const char* name_of(RowKind rows) {
  return rows == RowKind::kTokens ? "tokens" : "samples";
}

}  // namespace

ModelGraph::ModelGraph(const OpTable& ops, ThreadPool& pool) : ops_(&ops), pool_(&pool) {}

void ModelGraph::require_recording(const char* op) const {
  require(!output_.has_value(), [&] { return std::string(op) + ": the graph is finalized, nothing can be added"; });
}

BufferId ModelGraph::buffer(RowKind rows, std::int64_t cols, DType dtype) {
  require_recording("buffer");
  require(cols > 0 && cols <= kMaxCols, [&] {
    return "buffer: cols must lie in [1, " + std::to_string(kMaxCols) + "], got " + std::to_string(cols);
  });
  require(dtype != DType::kInt32, [] { return std::string("buffer: dtype must be float32 or bfloat16, got int32"); });
  buffers_.push_back({.rows = rows, .cols = cols, .dtype = dtype});
  return static_cast<BufferId>(buffers_.size()) - 1;
}

Buffer& ModelGraph::at(const char* op, const char* argument, BufferId id) {
  require(id >= 0 && static_cast<std::size_t>(id) < buffers_.size(), [&] {
    return said(op, argument) + " must be a buffer of this graph, 0 to " + std::to_string(buffers_.size()) +
           " exclusive, got " + std::to_string(id);
  });
  return buffers_[static_cast<std::size_t>(id)];
}

Buffer& ModelGraph::readable(const char* op, const char* argument, BufferId id, DType dtype) {
  require_recording(op);
  Buffer& buffer = at(op, argument, id);
  require(buffer.written, [&] {
    return said(op, argument) + " must have been written by an earlier op, buffer " + std::to_string(id) + " was not";
  });
  require(buffer.dtype == dtype, [&] {
    return said(op, argument) + " must be " + name_of(dtype) + ", buffer " + std::to_string(id) + " is " +
           name_of(buffer.dtype);
  });
  return buffer;
}

Buffer& ModelGraph::writable(const char* op, const char* argument, BufferId id, DType dtype, RowKind rows,
                             std::int64_t cols) {
  require_recording(op);
  Buffer& buffer = at(op, argument, id);
  require(!buffer.written, [&] {
    return said(op, argument) + " must be a fresh buffer, buffer " + std::to_string(id) + " was written before";
  });
  require(buffer.dtype == dtype && buffer.rows == rows && buffer.cols == cols, [&] {
    return said(op, argument) + " must be [" + name_of(rows) + ", " + std::to_string(cols) + "] " + name_of(dtype) +
           ", buffer " + std::to_string(id) + " is [" + name_of(buffer.rows) + ", " + std::to_string(buffer.cols) +
           "] " + name_of(buffer.dtype);
  });
  return buffer;
}

void ModelGraph::embedding(const TensorView& table, BufferId out) {
  require_tensor("embedding", "table", table, DType::kBFloat16, 2);
  writable("embedding", "out", out, DType::kFloat32, RowKind::kTokens, table.shape[1]).written = true;
  limits_.vocab_size = std::min(limits_.vocab_size, table.shape[0]);
  EmbeddingParams params;
  params.table = table;
  nodes_.push_back({.params = params, .input = {}, .residual = {}, .output = out});
}

void ModelGraph::rms_norm(BufferId x, const BufferId* residual, const TensorView& weight, float eps, BufferId out) {
  const Buffer& source = readable("rms_norm", "x", x, DType::kFloat32);
  if (residual != nullptr) {
    const Buffer& added = readable("rms_norm", "residual", *residual, DType::kFloat32);
    require(*residual != x,
            [&] { return "rms_norm: residual must be another buffer than x, both are " + std::to_string(x); });
    require(added.rows == source.rows && added.cols == source.cols, [&] {
      return "rms_norm: residual must be [" + std::string(name_of(source.rows)) + ", " + std::to_string(source.cols) +
             "] as x is, got [" + name_of(added.rows) + ", " + std::to_string(added.cols) + "]";
    });
  }
  require_tensor("rms_norm", "weight", weight, DType::kFloat32, 1);
  require_equal("rms_norm", "weight must have as many elements as x has columns", source.cols, weight.shape[0]);
  require(eps >= 0.0F, [&] { return "rms_norm: eps must be >= 0, got " + std::to_string(eps); });
  writable("rms_norm", "out", out, DType::kBFloat16, source.rows, source.cols).written = true;
  RmsNormParams params;
  params.weight = weight;
  params.eps = eps;
  Node node{.params = params, .input = x, .residual = {}, .output = out};
  if (residual != nullptr) {
    node.residual = *residual;
  }
  nodes_.push_back(node);
}

void ModelGraph::linear(BufferId x, const PackedLinear& weight, BufferId out) {
  const Buffer& source = readable("linear", "x", x, DType::kBFloat16);
  require_equal("linear", "x must have as many columns as the weight has in_features", weight.in_features(),
                source.cols);
  require(std::string_view(weight.isa()) == ops_->isa, [&] {
    return "linear: weight is packed for '" + std::string(weight.isa()) + "', the graph runs '" + ops_->isa + "'";
  });
  writable("linear", "out", out, DType::kFloat32, source.rows, weight.out_features()).written = true;
  LinearParams params;
  params.weight = &weight;
  nodes_.push_back({.params = params, .input = x, .residual = {}, .output = out});
}

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

void ModelGraph::rotary_cache_write(BufferId qkv, const TensorView& cos_sin, std::int32_t layer, BufferId q) {
  constexpr const char* kOp = "rotary_cache_write";
  const Buffer& source = readable(kOp, "qkv", qkv, DType::kFloat32);
  require_tensor(kOp, "cos_sin", cos_sin, DType::kFloat32, 2);
  const std::int64_t head_dim = cos_sin.shape[1];
  require(head_dim > 0 && head_dim % 2 == 0, [&] {
    return said(kOp, "cos_sin") + " must have an even number of columns, head_dim, got " + std::to_string(head_dim);
  });
  const std::int64_t q_cols = at(kOp, "q", q).cols;
  const std::int64_t num_heads = q_cols / head_dim;
  const std::int64_t num_kv_heads = (source.cols - q_cols) / (2 * head_dim);
  require(num_kv_heads > 0 && q_cols == num_heads * head_dim && source.cols == q_cols + 2 * num_kv_heads * head_dim &&
              num_heads % num_kv_heads == 0,
          [&] {
            return said(kOp, "qkv") +
                   " must have (Hq + 2 Hkv) * D columns and q Hq * D, with D = " + std::to_string(head_dim) +
                   " and Hq a multiple of Hkv, got " + std::to_string(source.cols) + " and " + std::to_string(q_cols);
          });
  Buffer& target = writable(kOp, "q", q, DType::kBFloat16, RowKind::kTokens, q_cols);
  require(source.rows == RowKind::kTokens, [&] { return said(kOp, "qkv") + " must have token rows, got samples"; });
  set_kv_shape(kOp, layer, num_kv_heads, head_dim);
  target.written = true;
  target.head_dim = head_dim;
  limits_.max_positions = std::min(limits_.max_positions, cos_sin.shape[0]);
  RotaryCacheWriteParams params;
  params.cos_sin = cos_sin;
  nodes_.push_back({.params = params, .input = qkv, .residual = {}, .output = q, .layer = layer});
}

void ModelGraph::paged_attention(BufferId q, std::int32_t layer, float scale, BufferId out) {
  constexpr const char* kOp = "paged_attention";
  const Buffer& source = readable(kOp, "q", q, DType::kBFloat16);
  require(source.head_dim > 0, [&] {
    return said(kOp, "q") + " must come from rotary_cache_write, buffer " + std::to_string(q) + " does not";
  });
  Buffer& target = writable(kOp, "out", out, DType::kBFloat16, RowKind::kTokens, source.cols);
  set_kv_shape(kOp, layer, num_kv_heads_, source.head_dim);
  target.written = true;
  PagedAttentionParams params;
  params.scale = scale;
  nodes_.push_back({.params = params, .input = q, .residual = {}, .output = out, .layer = layer});
}

void ModelGraph::gated_activation(BufferId gate_up, Activation activation, BufferId out) {
  const Buffer& source = readable("gated_activation", "gate_up", gate_up, DType::kFloat32);
  require(source.cols % 2 == 0, [&] {
    return "gated_activation: gate_up must have an even number of columns, got " + std::to_string(source.cols);
  });
  writable("gated_activation", "out", out, DType::kBFloat16, source.rows, source.cols / 2).written = true;
  GatedActivationParams params;
  params.activation = activation;
  nodes_.push_back({.params = params, .input = gate_up, .residual = {}, .output = out});
}

void ModelGraph::gather_rows(BufferId x, BufferId out) {
  const Buffer& source = readable("gather_rows", "x", x, DType::kFloat32);
  require(source.rows == RowKind::kTokens,
          [] { return std::string("gather_rows: x must have token rows, got samples"); });
  writable("gather_rows", "out", out, DType::kFloat32, RowKind::kSamples, source.cols).written = true;
  nodes_.push_back({.params = GatherRowsParams{}, .input = x, .residual = {}, .output = out});
}

}  // namespace fastpaged
