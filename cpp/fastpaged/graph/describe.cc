// ModelGraph::describe(): the recorded pass as text.
#include <sstream>
#include <string>
#include <variant>

#include "fastpaged/graph/model_graph.h"
#include "fastpaged/ops/packed_linear.h"
#include "fastpaged/ops/shape_check.h"

namespace fastpaged {
namespace {

std::string number(float value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

struct NodeText {
  const Node& node;

  std::string operator()(const EmbeddingParams& params) const {
    std::ostringstream text;
    text << "embedding vocab=" << params.table.shape[0];
    if (params.scale != 1.0F) {
      text << " scale=" << params.scale;
    }
    if (!params.position_table.empty()) {
      text << " positions=" << params.position_table.shape[0];
    }
    return text.str();
  }
  std::string operator()(const RmsNormParams& params) const { return "rms_norm eps=" + number(params.eps); }
  std::string operator()(const LayerNormParams& params) const {
    return "layer_norm eps=" + number(params.eps) + (params.bias.empty() ? "" : " bias");
  }
  std::string operator()(const LinearParams& params) const {
    std::ostringstream text;
    text << "linear weight=[" << params.weight->out_features() << ", " << params.weight->in_features() << "]"
         << (params.bias.empty() ? "" : " bias") << (params.weight->gated() ? " gated" : "");
    if (params.activation) {
      text << " " << name_of(*params.activation);
    }
    text << (params.adds ? " added" : "");
    return text.str();
  }
  std::string operator()(const RotaryCacheWriteParams& params) const {
    std::string text = "rotary_cache_write layer=" + std::to_string(node.layer);
    if (!params.cos_sin.empty()) {
      text += " rotary=" + std::to_string(params.cos_sin.shape[1]);
    }
    return params.q_norm.empty() ? text : text + " norm_eps=" + number(params.norm_eps);
  }
  std::string operator()(const PagedAttentionParams& params) const {
    std::ostringstream text;
    text << "paged_attention layer=" << node.layer << " scale=" << params.scale;
    if (params.window > 0) {
      text << " window=" << params.window;
    }
    if (params.soft_cap > 0.0F) {
      text << " soft_cap=" << params.soft_cap;
    }
    text << (params.alibi_slopes.empty() ? "" : " alibi");
    return text.str();
  }
  std::string operator()(const SoftCapParams& params) const { return "soft_cap cap=" + number(params.cap); }
  std::string operator()(const AddParams& /*params*/) const { return "add"; }
  std::string operator()(const GatherRowsParams& /*params*/) const { return "gather_rows"; }
};

// "#3 [T, 576] float32 @ 4096"
void write_buffer(std::ostream& text, const Buffer& buffer, BufferId id, bool placed) {
  text << "#" << id << " [" << (buffer.rows == RowKind::kTokens ? "T" : "R") << ", " << buffer.cols << "] "
       << name_of(buffer.dtype);
  if (placed) {
    text << " @ " << buffer.offset;
  }
}

}  // namespace

std::string ModelGraph::describe() const {
  const bool placed = output_.has_value();
  std::ostringstream text;
  text << "graph for " << ops_->isa << " in " << name_of(activation_dtype_) << ": " << nodes_.size() << " nodes, "
       << buffers_.size() << " buffers";
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
