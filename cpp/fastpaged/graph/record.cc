// ModelGraph: recording, with every shape checked where it is written down.
#include <algorithm>
#include <cmath>
#include <string>

#include "fastpaged/base/check.h"
#include "fastpaged/graph/model_graph.h"
#include "fastpaged/graph/record_checks.h"
#include "fastpaged/ops/shape_check.h"

namespace fastpaged {
namespace {

constexpr std::int64_t kMaxCols = std::int64_t{1} << 40;  // so that no count of bytes of a row overflows

}  // namespace

ModelGraph::ModelGraph(const OpTable& ops, ThreadPool& pool, DType activation_dtype)
    : ops_(&ops), pool_(&pool), activation_dtype_(activation_dtype) {
  require(activation_dtype == DType::kBFloat16 || activation_dtype == DType::kFloat32, [&] {
    return "ModelGraph: dtype must be bfloat16 or float32, got " + std::string(name_of(activation_dtype));
  });
}

void ModelGraph::require_recording(const char* op) const {
  require(!output_.has_value(), [&] { return std::string(op) + ": the graph is finalized, nothing can be added"; });
}

BufferId ModelGraph::buffer(RowKind rows, std::int64_t cols, DType dtype) {
  require_recording("buffer");
  require(cols > 0 && cols <= kMaxCols, [&] {
    return "buffer: cols must lie in [1, " + std::to_string(kMaxCols) + "], got " + std::to_string(cols);
  });
  require(dtype == DType::kFloat32 || dtype == activation_dtype_, [&] {
    return std::string("buffer: dtype must be float32") +
           (activation_dtype_ == DType::kFloat32 ? "" : " or " + std::string(name_of(activation_dtype_))) + ", got " +
           name_of(dtype);
  });
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

void ModelGraph::embedding(const TensorView& table, const TensorView& position_table, float scale, BufferId out) {
  constexpr const char* kOp = "embedding";
  require_tensor(kOp, "table", table, activation_dtype_, 2);
  require(std::isfinite(scale), [&] { return said(kOp, "scale must be finite, got ") + std::to_string(scale); });
  if (!position_table.empty()) {
    require_tensor(kOp, "position_table", position_table, DType::kFloat32, 2);
    require_equal(kOp, "position_table must have as many columns as the table", table.shape[1],
                  position_table.shape[1]);
  }
  writable(kOp, "out", out, DType::kFloat32, RowKind::kTokens, table.shape[1]).written = true;
  limits_.vocab_size = std::min(limits_.vocab_size, table.shape[0]);
  if (!position_table.empty()) {
    limit_positions(position_table.shape[0]);
  }
  const EmbeddingParams params{
      .token_ids = {}, .table = table, .position_table = position_table, .out = {}, .scale = scale};
  nodes_.push_back({.params = params, .input = {}, .residual = {}, .output = out});
}

void ModelGraph::limit_positions(std::int64_t num_rows) {
  limits_.reads_positions = true;
  limits_.max_positions = std::min(limits_.max_positions, num_rows);
}

void ModelGraph::require_addend(const char* op, const char* argument, BufferId addend, BufferId x) {
  const Buffer& source = at(op, "x", x);
  const Buffer& added = readable(op, argument, addend, DType::kFloat32);
  require(addend != x,
          [&] { return said(op, argument) + " must be another buffer than x, both are " + std::to_string(x); });
  require(added.rows == source.rows && added.cols == source.cols, [&] {
    return said(op, argument) + " must be [" + name_of(source.rows) + ", " + std::to_string(source.cols) +
           "] as x is, got [" + name_of(added.rows) + ", " + std::to_string(added.cols) + "]";
  });
}

Node ModelGraph::norm_node(const char* op, BufferId x, const BufferId* residual, const TensorView& weight, float eps,
                           BufferId out) {
  const Buffer& source = readable(op, "x", x, DType::kFloat32);
  Node node{.params = {}, .input = x, .residual = {}, .output = out};
  if (residual != nullptr) {
    require_addend(op, "residual", *residual, x);
    node.residual = *residual;
  }
  require_vector(op, "weight must have as many elements as x has columns", weight, source.cols);
  require(std::isfinite(eps) && eps >= 0.0F,
          [&] { return said(op, "eps") + " must be finite and >= 0, got " + std::to_string(eps); });
  const DType dtype = at(op, "out", out).dtype == DType::kFloat32 ? DType::kFloat32 : activation_dtype_;
  writable(op, "out", out, dtype, source.rows, source.cols);
  return node;
}

void ModelGraph::rms_norm(BufferId x, const BufferId* residual, const TensorView& weight, float eps, BufferId out) {
  Node node = norm_node("rms_norm", x, residual, weight, eps, out);
  node.params = RmsNormParams{.x = {}, .weight = weight, .out = {}, .eps = eps};
  nodes_.push_back(node);
  at("rms_norm", "out", out).written = true;
}

void ModelGraph::layer_norm(BufferId x, const BufferId* residual, const TensorView& weight, const TensorView& bias,
                            float eps, BufferId out) {
  Node node = norm_node("layer_norm", x, residual, weight, eps, out);
  if (!bias.empty()) {
    require_vector("layer_norm", "bias must have as many elements as x has columns", bias, weight.shape[0]);
  }
  node.params = LayerNormParams{.x = {}, .weight = weight, .bias = bias, .out = {}, .eps = eps};
  nodes_.push_back(node);
  at("layer_norm", "out", out).written = true;
}

void ModelGraph::linear(BufferId x, const PackedLinear& weight, const TensorView& bias, BufferId out) {
  constexpr const char* kOp = "linear";
  const Buffer& source = readable(kOp, "x", x, activation_dtype_);
  require_equal(kOp, "x must have as many columns as the weight has in_features", weight.in_features(), source.cols);
  require(std::string_view(weight.isa()) == ops_->isa, [&] {
    return "linear: weight is packed for '" + std::string(weight.isa()) + "', the graph runs '" + ops_->isa + "'";
  });
  require(weight.dtype() == activation_dtype_, [&] {
    return "linear: weight must be packed as " + std::string(name_of(activation_dtype_)) +
           ", as the graph computes, got " + name_of(weight.dtype());
  });
  if (!bias.empty()) {
    require_vector(kOp, "bias must have as many elements as the weight has out_features", bias, weight.out_features());
  }
  writable(kOp, "out", out, DType::kFloat32, source.rows, weight.out_features()).written = true;
  const LinearParams params{.x = {}, .weight = &weight, .bias = bias, .out = {}};
  nodes_.push_back({.params = params, .input = x, .residual = {}, .output = out});
}

void ModelGraph::activation(BufferId x, Activation activation, BufferId out) {
  const Buffer& source = readable("activation", "x", x, DType::kFloat32);
  writable("activation", "out", out, activation_dtype_, source.rows, source.cols).written = true;
  const ActivationParams params{.x = {}, .out = {}, .activation = activation};
  nodes_.push_back({.params = params, .input = x, .residual = {}, .output = out});
}

void ModelGraph::gated_activation(BufferId gate_up, Activation activation, BufferId out) {
  const Buffer& source = readable("gated_activation", "gate_up", gate_up, DType::kFloat32);
  require(source.cols % 2 == 0, [&] {
    return "gated_activation: gate_up must have an even number of columns, got " + std::to_string(source.cols);
  });
  writable("gated_activation", "out", out, activation_dtype_, source.rows, source.cols / 2).written = true;
  const GatedActivationParams params{.gate_up = {}, .out = {}, .activation = activation};
  nodes_.push_back({.params = params, .input = gate_up, .residual = {}, .output = out});
}

void ModelGraph::soft_cap(BufferId x, float cap) {
  readable("soft_cap", "x", x, DType::kFloat32);
  require(std::isfinite(cap) && cap > 0.0F,
          [&] { return "soft_cap: cap must be finite and > 0, got " + std::to_string(cap); });
  const SoftCapParams params{.x = {}, .cap = cap};
  nodes_.push_back({.params = params, .input = x, .residual = {}, .output = x});
}

void ModelGraph::add(BufferId x, BufferId y) {
  readable("add", "x", x, DType::kFloat32);
  require_addend("add", "y", y, x);
  nodes_.push_back({.params = AddParams{}, .input = x, .residual = y, .output = x});
}

void ModelGraph::gather_rows(BufferId x, BufferId out) {
  const Buffer& source = readable("gather_rows", "x", x, DType::kFloat32);
  require(source.rows == RowKind::kTokens,
          [] { return std::string("gather_rows: x must have token rows, got samples"); });
  writable("gather_rows", "out", out, DType::kFloat32, RowKind::kSamples, source.cols).written = true;
  nodes_.push_back({.params = GatherRowsParams{}, .input = x, .residual = {}, .output = out});
}

}  // namespace fastpaged
