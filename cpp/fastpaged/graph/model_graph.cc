// ModelGraph: placing the buffers, and running.
#include "fastpaged/graph/model_graph.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <variant>

#include "fastpaged/base/check.h"
#include "fastpaged/ops/kv_codes.h"
#include "fastpaged/ops/kv_layout.h"
#include "fastpaged/ops/shape_check.h"

namespace fastpaged {
namespace {

TensorView int_array(std::span<const std::int32_t> values) {
  return TensorView::dense(const_cast<std::int32_t*>(values.data()), DType::kInt32,
                           {static_cast<std::int64_t>(values.size())});
}

void require_budget(const char* name, std::int64_t value, std::int64_t widest_row_bytes) {
  // Row counts travel in int32 arrays, and the byte count of one buffer must not overflow.
  const std::int64_t limit = std::min<std::int64_t>(
      std::numeric_limits<std::int32_t>::max(), (std::numeric_limits<std::int64_t>::max() >> 20) / widest_row_bytes);
  require(value > 0 && value <= limit, [&] {
    return "finalize: " + std::string(name) + " must lie in [1, " + std::to_string(limit) + "], got " +
           std::to_string(value);
  });
}

}  // namespace

std::vector<Lifetime> ModelGraph::lifetimes(BufferId output, std::int64_t max_num_tokens,
                                            std::int64_t max_num_samples) const {
  const std::int32_t num_nodes = static_cast<std::int32_t>(nodes_.size());
  std::vector<Lifetime> lifetimes(buffers_.size(), Lifetime{num_nodes, -1, 0});
  const auto mention = [&](BufferId id, std::int32_t node) {
    Lifetime& lifetime = lifetimes[static_cast<std::size_t>(id)];
    lifetime.first = std::min(lifetime.first, node);
    lifetime.last = std::max(lifetime.last, node);
  };
  for (std::int32_t i = 0; i < num_nodes; ++i) {
    const Node& node = nodes_[static_cast<std::size_t>(i)];
    mention(node.output, i);
    if (node.input) {
      mention(*node.input, i);
    }
    if (node.residual) {
      mention(*node.residual, i);
    }
  }
  for (std::size_t id = 0; id < buffers_.size(); ++id) {
    const bool is_tokens = buffers_[id].rows == RowKind::kTokens;
    const std::int64_t num_rows = is_tokens ? max_num_tokens : max_num_samples;
    lifetimes[id].num_bytes = buffers_[id].folded ? 0 : static_cast<std::size_t>(buffers_[id].row_bytes() * num_rows);
  }
  lifetimes[static_cast<std::size_t>(output)].first = 0;
  lifetimes[static_cast<std::size_t>(output)].last = num_nodes;
  return lifetimes;
}

void ModelGraph::finalize(BufferId output, std::int64_t max_num_tokens, std::int64_t max_num_samples) {
  const Buffer& logits = readable("finalize", "output", output, DType::kFloat32);
  require(logits.rows == RowKind::kSamples,
          [] { return std::string("finalize: output must have sample rows, got tokens"); });
  std::int64_t widest_row_bytes = 1;
  for (std::size_t id = 0; id < buffers_.size(); ++id) {
    require(buffers_[id].written, [&] { return "finalize: buffer " + std::to_string(id) + " is never written"; });
    widest_row_bytes = std::max(widest_row_bytes, buffers_[id].row_bytes());
  }
  require_budget("max_num_tokens", max_num_tokens, widest_row_bytes);
  require_budget("max_num_samples", max_num_samples, widest_row_bytes);

  const Placement placement = place_buffers(lifetimes(output, max_num_tokens, max_num_samples), Arena::kAlignment);
  Arena arena(placement.num_bytes);
  // Nothing below throws.
  arena_ = std::move(arena);
  for (std::size_t id = 0; id < buffers_.size(); ++id) {
    buffers_[id].offset = placement.offsets[id];
  }
  limits_.num_tokens = max_num_tokens;
  limits_.num_samples = max_num_samples;
  output_ = output;
}

void ModelGraph::bind_kv_cache(const TensorView& kv_cache) {
  require(num_layers_ > 0, [] { return std::string("bind_kv_cache: no op that has a KV cache is recorded"); });
  if (is_kv_code(kv_cache.dtype)) {
    return bind_kv_codes(kv_cache);
  }
  require(!kv_cache.empty() && kv_cache.dtype == activation_dtype_ && kv_cache.rank == 6, [&] {
    return "bind_kv_cache: kv_cache must be a " + std::string(name_of(activation_dtype_)) + " array of rank 6, got " +
           name_of(kv_cache.dtype) + " of rank " + std::to_string(kv_cache.rank);
  });
  const auto& shape = kv_cache.shape;
  require(shape[0] > 0 && shape[1] >= num_layers_ && shape[2] == 2 && shape[3] == num_kv_heads_ && shape[4] > 0 &&
              shape[5] == head_dim_ && kv_cache.strides[5] == 1,
          [&] {
            std::string given;
            for (int axis = 0; axis < 6; ++axis) {
              given += (axis == 0 ? "" : ", ") + std::to_string(shape[static_cast<std::size_t>(axis)]);
            }
            return "bind_kv_cache: kv_cache must be [num_blocks, " + std::to_string(num_layers_) + ", 2, " +
                   std::to_string(num_kv_heads_) + ", block_size, " + std::to_string(head_dim_) + "], got [" + given +
                   "]";
          });
  kv_cache_ = kv_cache;
  limits_.num_blocks = shape[0];
  limits_.block_size = shape[4];
}

void ModelGraph::bind_kv_codes(const TensorView& bytes) {
  const auto& shape = bytes.shape;
  const std::int64_t slot_bytes = head_dim_ + kKVScaleBytes;
  require(!bytes.empty() && bytes.rank == 5 && shape[0] > 0 && shape[1] >= num_layers_ && shape[2] == 2 &&
              shape[3] == num_kv_heads_ && shape[4] > 0 && shape[4] % slot_bytes == 0,
          [&] {
            std::string given;
            for (int axis = 0; axis < bytes.rank; ++axis) {
              given += (axis == 0 ? "" : ", ") + std::to_string(shape[static_cast<std::size_t>(axis)]);
            }
            return "bind_kv_cache: kv_cache must be [num_blocks, " + std::to_string(num_layers_) + ", 2, " +
                   std::to_string(num_kv_heads_) + ", block_size * " + std::to_string(slot_bytes) + "] bytes of " +
                   name_of(bytes.dtype) + ", got [" + given + "]";
          });
  kv_cache_ = kv_code_view("bind_kv_cache: kv_cache", bytes, head_dim_);
  limits_.num_blocks = shape[0];
  limits_.block_size = kv_cache_.shape[4];
}

TensorView ModelGraph::view(std::optional<BufferId> id) const {
  if (!id) {
    return {};
  }
  const Buffer& buffer = buffers_[static_cast<std::size_t>(*id)];
  const std::int64_t num_rows = buffer.rows == RowKind::kTokens ? num_tokens_ : num_samples_;
  return TensorView::dense(arena_.data() + buffer.offset, buffer.dtype, {num_rows, buffer.cols});
}

TensorView ModelGraph::heads(std::optional<BufferId> id) const {
  if (!id) {
    return {};
  }
  const Buffer& buffer = buffers_[static_cast<std::size_t>(*id)];
  return TensorView::dense(arena_.data() + buffer.offset, buffer.dtype,
                           {num_tokens_, buffer.cols / buffer.head_dim, buffer.head_dim});
}

TensorView ModelGraph::kv_layer(std::int32_t layer) const {
  TensorView view = kv_cache_;
  view.rank = 5;
  view.data =
      kv_cache_.ptr<std::byte>() + layer * kv_cache_.strides[1] * static_cast<std::int64_t>(size_of(kv_cache_.dtype));
  for (std::size_t axis = 1; axis < 5; ++axis) {
    view.shape[axis] = kv_cache_.shape[axis + 1];
    view.strides[axis] = kv_cache_.strides[axis + 1];
  }
  return view;
}

void ModelGraph::run_node(EmbeddingParams& params, const Node& node, const Batch& batch) {
  params.token_ids = int_array(batch.token_ids);
  params.positions = int_array(batch.positions);
  params.out = view(node.output);
  ops_->embedding(params, *pool_);
}

void ModelGraph::run_node(RmsNormParams& params, const Node& node, const Batch& /*batch*/) {
  params.x = view(node.input);
  params.residual = view(node.residual);
  params.out = view(node.output);
  ops_->rms_norm(params, *pool_);
}

void ModelGraph::run_node(LayerNormParams& params, const Node& node, const Batch& /*batch*/) {
  params.x = view(node.input);
  params.residual = view(node.residual);
  params.out = view(node.output);
  ops_->layer_norm(params, *pool_);
}

void ModelGraph::run_node(LinearParams& params, const Node& node, const Batch& /*batch*/) {
  params.x = view(node.input);
  params.out = view(node.output);
  ops_->linear(params, *pool_);
}

void ModelGraph::run_node(RotaryCacheWriteParams& params, const Node& node, const Batch& batch) {
  params.qkv = view(node.input);
  params.positions = int_array(batch.positions);
  params.slot_mapping = int_array(batch.slot_mapping);
  params.kv_cache = kv_layer(node.layer);
  params.q = heads(node.output);
  ops_->rotary_cache_write(params, *pool_);
}

void ModelGraph::run_node(PagedAttentionParams& params, const Node& node, const Batch& batch) {
  params.q = heads(node.input);
  params.kv_cache = kv_layer(node.layer);
  params.query_start = int_array(batch.query_start);
  params.context_lens = int_array(batch.context_lens);
  params.block_tables =
      TensorView::dense(const_cast<std::int32_t*>(batch.block_tables.data()), DType::kInt32,
                        {static_cast<std::int64_t>(batch.context_lens.size()), batch.max_blocks_per_sequence});
  params.out = view(node.output);
  params.workspace = &workspace_;
  ops_->paged_attention(params, *pool_);
}

void ModelGraph::run_node(SoftCapParams& params, const Node& node, const Batch& /*batch*/) {
  params.x = view(node.input);
  ops_->soft_cap(params, *pool_);
}

void ModelGraph::run_node(AddParams& params, const Node& node, const Batch& /*batch*/) {
  params.x = view(node.input);
  params.y = view(node.residual);
  ops_->add(params, *pool_);
}

void ModelGraph::run_node(GatherRowsParams& params, const Node& node, const Batch& batch) {
  params.x = view(node.input);
  params.rows = int_array(batch.sample_rows);
  params.out = view(node.output);
  ops_->gather_rows(params, *pool_);
}

void ModelGraph::run(const Batch& batch) {
  require(output_.has_value(), [] { return std::string("run: the graph must be finalized first"); });
  require(num_layers_ == 0 || !kv_cache_.empty(), [] { return std::string("run: bind_kv_cache must come first"); });
  check_batch(batch, limits_);
  num_tokens_ = static_cast<std::int64_t>(batch.token_ids.size());
  num_samples_ = static_cast<std::int64_t>(batch.sample_rows.size());
  if (op_times_) {
    op_times_->begin_run();
  }
  for (Node& node : nodes_) {
    const RowKind rows = buffers_[static_cast<std::size_t>(node.output)].rows;
    if ((rows == RowKind::kTokens ? num_tokens_ : num_samples_) > 0) {
      const auto run_it = [&] { std::visit([&](auto& params) { run_node(params, node, batch); }, node.params); };
      if (op_times_) {
        op_times_->measure(node.params, run_it);
      } else {
        run_it();
      }
      num_nodes_run_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  if (op_times_) {
    op_times_->end_run();
  }
}

TensorView ModelGraph::output() const {
  require(output_.has_value(), [] { return std::string("output: the graph must be finalized first"); });
  return view(output_);
}

void ModelGraph::check_invariants() const {
  invariant(kv_cache_.empty() || kv_cache_.shape[1] >= num_layers_, "the KV cache has every layer that is recorded");
  if (!output_) {
    return;
  }
  const std::vector<Lifetime> alive = lifetimes(*output_, limits_.num_tokens, limits_.num_samples);
  for (std::size_t a = 0; a < buffers_.size(); ++a) {
    const std::size_t end_a = buffers_[a].offset + alive[a].num_bytes;
    invariant(buffers_[a].offset % Arena::kAlignment == 0, "buffer offsets are aligned");
    invariant(end_a <= arena_.num_bytes(), "buffers lie inside the arena");
    for (std::size_t b = 0; b < a; ++b) {
      const std::size_t end_b = buffers_[b].offset + alive[b].num_bytes;
      const bool overlap = buffers_[a].offset < end_b && buffers_[b].offset < end_a;
      invariant(!(overlap && alive_together(alive[a], alive[b])), "buffers alive together do not overlap");
    }
  }
}

}  // namespace fastpaged
