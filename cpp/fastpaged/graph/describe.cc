// ModelGraph::describe(): the recorded pass as text.
#include <sstream>
#include <string>
#include <variant>

#include "fastpaged/graph/model_graph.h"
#include "fastpaged/ops/packed_linear.h"

namespace fastpaged {
namespace {

struct NodeText {
  const Node& node;

  std::string operator()(const EmbeddingParams& params) const {
    return "embedding vocab=" + std::to_string(params.table.shape[0]);
  }
  std::string operator()(const RmsNormParams& params) const {
    std::ostringstream text;
    text << "rms_norm eps=" << params.eps;
    return text.str();
  }
  std::string operator()(const LinearParams& params) const {
    return "linear weight=[" + std::to_string(params.weight->out_features()) + ", " +
           std::to_string(params.weight->in_features()) + "]";
  }
  std::string operator()(const RotaryCacheWriteParams& /*params*/) const {
    return "rotary_cache_write layer=" + std::to_string(node.layer);
  }
  std::string operator()(const PagedAttentionParams& params) const {
    std::ostringstream text;
    text << "paged_attention layer=" << node.layer << " scale=" << params.scale;
    return text.str();
  }
  std::string operator()(const GatedActivationParams& /*params*/) const { return "gated_activation silu"; }
  std::string operator()(const GatherRowsParams& /*params*/) const { return "gather_rows"; }
};

// "#3 [T, 576] float32 @ 4096"
void write_buffer(std::ostream& text, const Buffer& buffer, BufferId id, bool placed) {
  text << "#" << id << " [" << (buffer.rows == RowKind::kTokens ? "T" : "R") << ", " << buffer.cols << "] "
       << (buffer.dtype == DType::kFloat32 ? "float32" : "bfloat16");
  if (placed) {
    text << " @ " << buffer.offset;
  }
}

}  // namespace

std::string ModelGraph::describe() const {
  const bool placed = output_.has_value();
  std::ostringstream text;
  text << "graph for " << ops_->isa << ": " << nodes_.size() << " nodes, " << buffers_.size() << " buffers";
  if (placed) {
    text << ", arena of " << arena_bytes() << " bytes for T <= " << limits_.num_tokens
         << ", R <= " << limits_.num_samples;
  }
  text << "\n";
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    text << "  " << i << ": " << std::visit(NodeText{node}, node.params);
    if (node.input) {
      text << "  #" << *node.input;
    }
    if (node.residual) {
      text << " += #" << *node.residual;
    }
    text << " -> ";
    write_buffer(text, buffers_[static_cast<std::size_t>(node.output)], node.output, placed);
    text << "\n";
  }
  return text.str();
}

}  // namespace fastpaged
