// A ModelGraph recorded twice: once for real, and once as closures over buffers that share nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "fastpaged/graph/model_graph.h"
#include "graph/fake_ops.h"

namespace fastpaged::testing {

inline constexpr std::int64_t kVocab = 11;
inline constexpr std::int64_t kHeadDim = 4;
inline constexpr std::int64_t kBlockSize = 3;
inline constexpr std::int64_t kNumBlocks = 6;
inline constexpr std::int64_t kMaxTokens = 9;
inline constexpr std::int64_t kMaxSamples = 4;

// Weights with a fixed address and values that differ from one another.
class Weights {
 public:
  explicit Weights(std::uint32_t seed) : random_(seed) {}

  TensorView bfloat16(std::int64_t rows, std::int64_t cols) {
    auto& values = bfloat16_.emplace_back();
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      values.push_back(narrow(value()));
    }
    return TensorView::dense(values.data(), DType::kBFloat16, {rows, cols});
  }
  TensorView vector(std::int64_t size) {
    auto& values = float32_.emplace_back();
    for (std::int64_t i = 0; i < size; ++i) {
      values.push_back(value());
    }
    return TensorView::dense(values.data(), DType::kFloat32, {size});
  }
  TensorView matrix(std::int64_t rows, std::int64_t cols) {
    return TensorView::dense(vector(rows * cols).data, DType::kFloat32, {rows, cols});
  }
  const PackedLinear& packed(std::int64_t out_features, std::int64_t in_features, const char* isa = "fake",
                             DType dtype = DType::kBFloat16) {
    const std::size_t num_values = static_cast<std::size_t>(out_features * in_features);
    PackedLinear& weight = packed_.emplace_back(out_features, in_features, dtype, num_values * sizeof(float), isa);
    for (std::size_t i = 0; i < num_values; ++i) {
      reinterpret_cast<float*>(weight.data())[i] = value();
    }
    return weight;
  }
  std::mt19937& random() { return random_; }

 private:
  float value() { return static_cast<float>(random_() % 2001) / 1000.0F - 1.0F; }

  std::mt19937 random_;
  std::deque<std::vector<BFloat16>> bfloat16_;
  std::deque<std::vector<float>> float32_;
  std::deque<PackedLinear> packed_;
};

struct KVMemory {
  std::vector<BFloat16> values;
  TensorView view;
  explicit KVMemory(std::int64_t num_layers, std::int64_t num_kv_heads = 1)
      : values(static_cast<std::size_t>(kNumBlocks * num_layers * 2 * num_kv_heads * kBlockSize * kHeadDim)),
        view(TensorView::dense(values.data(), DType::kBFloat16,
                               {kNumBlocks, num_layers, 2, num_kv_heads, kBlockSize, kHeadDim})) {}
};

// Two sequences: [0, first) and [first, num_tokens), one block of blocks each.
struct BatchArrays {
  std::vector<std::int32_t> token_ids, positions, slot_mapping, query_start, context_lens, block_tables, sample_rows;

  BatchArrays(std::int32_t first, std::int32_t second, std::vector<std::int32_t> samples, std::mt19937& random)
      : query_start{0, first, first + second},
        context_lens{first, second},
        block_tables{0, 1, 2, 3, 4, 5},
        sample_rows(std::move(samples)) {
    for (std::int32_t t = 0; t < first + second; ++t) {
      token_ids.push_back(static_cast<std::int32_t>(random() % kVocab));
      positions.push_back(t < first ? t : t - first);
      slot_mapping.push_back(t < first ? t : static_cast<std::int32_t>(3 * kBlockSize) + t - first);
    }
  }
  [[nodiscard]] Batch batch() const {
    return {token_ids, positions, slot_mapping, query_start, context_lens, block_tables, 3, sample_rows};
  }
};

// Records the same calls twice: into a ModelGraph, and as closures over buffers that share nothing.
class TwinGraph {
 public:
  TwinGraph(std::uint32_t seed, ThreadPool& pool) : weights(seed), graph(fake_ops(), pool) {}

  BufferId buffer(RowKind rows, std::int64_t cols, DType dtype) {
    const BufferId id = graph.buffer(rows, cols, dtype);
    const std::int64_t max_rows = rows == RowKind::kTokens ? kMaxTokens : kMaxSamples;
    owned_.push_back({rows, cols, dtype, std::vector<float>(static_cast<std::size_t>(max_rows * cols))});
    return id;
  }
  BufferId embedding(std::int64_t cols) {
    const TensorView table = weights.bfloat16(kVocab, cols);
    const BufferId out = buffer(RowKind::kTokens, cols, DType::kFloat32);
    graph.embedding(table, out);
    steps_.push_back([=, this](const Batch& b) {
      fake_embedding({.token_ids = ints(b.token_ids), .table = table, .out = view(out)}, pool_);
    });
    return out;
  }
  BufferId rms_norm(BufferId x, const BufferId* residual) {
    const Owned& source = owned_[static_cast<std::size_t>(x)];
    const BufferId out = buffer(source.rows, source.cols, DType::kBFloat16);
    const TensorView weight = weights.vector(owned_[static_cast<std::size_t>(x)].cols);
    graph.rms_norm(x, residual, weight, 0.25F, out);
    const BufferId added = residual != nullptr ? *residual : -1;
    steps_.push_back([=, this](const Batch&) {
      fake_rms_norm({.x = view(x),
                     .residual = added < 0 ? TensorView{} : view(added),
                     .weight = weight,
                     .out = view(out),
                     .eps = 0.25F},
                    pool_);
    });
    return out;
  }
  BufferId linear(BufferId x, std::int64_t cols) {
    const Owned& source = owned_[static_cast<std::size_t>(x)];
    const PackedLinear& weight = weights.packed(cols, source.cols);
    const BufferId out = buffer(source.rows, cols, DType::kFloat32);
    graph.linear(x, weight, out);
    steps_.push_back(
        [=, this, &weight](const Batch&) { fake_linear({.x = view(x), .weight = &weight, .out = view(out)}, pool_); });
    return out;
  }
  BufferId attention(BufferId qkv, std::int32_t layer, TensorView kv) {
    const std::int64_t q_cols = owned_[static_cast<std::size_t>(qkv)].cols - 2 * kHeadDim;
    const TensorView cos_sin = weights.matrix(32, kHeadDim);
    const BufferId q = buffer(RowKind::kTokens, q_cols, DType::kBFloat16);
    const BufferId out = buffer(RowKind::kTokens, q_cols, DType::kBFloat16);
    graph.rotary_cache_write(qkv, cos_sin, layer, q);
    graph.paged_attention(q, layer, 0.5F, out);
    steps_.push_back([=, this](const Batch& b) {
      TensorView part = TensorView::dense(kv.ptr<BFloat16>() + layer * kv.strides[1], DType::kBFloat16,
                                          {kNumBlocks, 2, 1, kBlockSize, kHeadDim});
      part.strides[0] = kv.strides[0];
      const TensorView dense_q = view(q);
      const TensorView heads =
          TensorView::dense(dense_q.data, DType::kBFloat16, {dense_q.shape[0], q_cols / kHeadDim, kHeadDim});
      fake_rotary_cache_write({.qkv = view(qkv),
                               .positions = ints(b.positions),
                               .slot_mapping = ints(b.slot_mapping),
                               .cos_sin = cos_sin,
                               .kv_cache = part,
                               .q = heads},
                              pool_);
      const TensorView tables = TensorView::dense(ints(b.block_tables).data, DType::kInt32, {2, 3});
      fake_paged_attention({.q = heads,
                            .kv_cache = part,
                            .query_start = ints(b.query_start),
                            .context_lens = ints(b.context_lens),
                            .block_tables = tables,
                            .out = view(out),
                            .scale = 0.5F},
                           pool_);
    });
    return out;
  }
  BufferId gated_activation(BufferId gate_up) {
    const Owned& source = owned_[static_cast<std::size_t>(gate_up)];
    const BufferId out = buffer(source.rows, source.cols / 2, DType::kBFloat16);
    graph.gated_activation(gate_up, Activation::kSilu, out);
    steps_.push_back([=, this](const Batch&) { fake_gated_activation({view(gate_up), view(out)}, pool_); });
    return out;
  }
  BufferId gather_rows(BufferId x) {
    const BufferId out = buffer(RowKind::kSamples, owned_[static_cast<std::size_t>(x)].cols, DType::kFloat32);
    graph.gather_rows(x, out);
    steps_.push_back([=, this](const Batch& b) { fake_gather_rows({view(x), ints(b.sample_rows), view(out)}, pool_); });
    return out;
  }

  std::vector<float> expected(BufferId output, const Batch& batch) {
    num_tokens_ = static_cast<std::int64_t>(batch.token_ids.size());
    num_samples_ = static_cast<std::int64_t>(batch.sample_rows.size());
    for (const auto& step : steps_) {
      step(batch);
    }
    const TensorView rows = view(output);
    return {rows.ptr<float>(), rows.ptr<float>() + rows.shape[0] * rows.shape[1]};
  }

  Weights weights;
  ModelGraph graph;

 private:
  struct Owned {
    RowKind rows;
    std::int64_t cols;
    DType dtype;
    std::vector<float> memory;  // enough for either dtype
  };
  static TensorView ints(std::span<const std::int32_t> values) {
    return TensorView::dense(const_cast<std::int32_t*>(values.data()), DType::kInt32,
                             {static_cast<std::int64_t>(values.size())});
  }
  TensorView view(BufferId id) {
    Owned& owned = owned_[static_cast<std::size_t>(id)];
    return TensorView::dense(owned.memory.data(), owned.dtype,
                             {owned.rows == RowKind::kTokens ? num_tokens_ : num_samples_, owned.cols});
  }

  ThreadPool pool_{1};
  std::deque<Owned> owned_;
  std::vector<std::function<void(const Batch&)>> steps_;
  std::int64_t num_tokens_ = 0;
  std::int64_t num_samples_ = 0;
};

}  // namespace fastpaged::testing
