// ModelGraph: recording, with every shape checked where it is written down.
#include <algorithm>
#include <cmath>
#include <string>
#include <variant>

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
  require(!buffer.folded, [&] {
    return said(op, argument) + " must still be there, buffer " + std::to_string(id) +
           " is not: the linear that computed it has added it to another";
  });
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

void ModelGraph::linear(BufferId x, const PackedLinear& weight, const TensorView& bias, BufferId out,
                        std::optional<Activation> activation) {
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
  require(activation || !weight.gated(), [] { return std::string("linear: a gated weight must have an activation"); });
  const std::int64_t cols = weight.gated() ? weight.out_features() / 2 : weight.out_features();
  writable(kOp, "out", out, activation ? activation_dtype_ : DType::kFloat32, source.rows, cols).written = true;
  const LinearParams params{.x = {}, .weight = &weight, .bias = bias, .out = {}, .activation = activation};
  nodes_.push_back({.params = params, .input = x, .residual = {}, .output = out});
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
  if (fold_into_linear(x, y)) {
    return;
  }
  nodes_.push_back({.params = AddParams{}, .input = x, .residual = y, .output = x});
}

// The sum plus its bias is what is added to x either way: the bits are those of two nodes.
bool ModelGraph::fold_into_linear(BufferId x, BufferId y) {
  Node& last = nodes_.back();
  auto* params = std::get_if<LinearParams>(&last.params);
  if (params == nullptr || last.output != y || last.input == x || params->adds || params->activation) {
    return false;
  }
  params->adds = true;
  last.output = x;
  at("add", "y", y).folded = true;
  return true;
}

void ModelGraph::gather_rows(BufferId x, BufferId out) {
  const Buffer& source = readable("gather_rows", "x", x, DType::kFloat32);
  require(source.rows == RowKind::kTokens,
          [] { return std::string("gather_rows: x must have token rows, got samples"); });
  writable("gather_rows", "out", out, DType::kFloat32, RowKind::kSamples, source.cols).written = true;
  nodes_.push_back({.params = GatherRowsParams{}, .input = x, .residual = {}, .output = out});
}

}  // namespace fastpaged
