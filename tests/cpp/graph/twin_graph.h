// A ModelGraph recorded twice: once for real, and once as closures over buffers that share nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "fastpaged/graph/model_graph.h"
#include "graph/fake_ops.h"

namespace fastpaged::testing {

inline constexpr std::int64_t kVocab = 11;
inline constexpr std::int64_t kHeadDim = 16;
inline constexpr std::int64_t kMaxPositions = 32;
inline constexpr std::int64_t kBlockSize = 3;
inline constexpr std::int64_t kNumBlocks = 6;
inline constexpr std::int64_t kMaxTokens = 9;
inline constexpr std::int64_t kMaxSamples = 4;

// Weights with a fixed address and values that differ from one another.
class Weights {
 public:
  explicit Weights(std::uint32_t seed) : random_(seed) {}

  // Of dtype bfloat16 or float32.
  TensorView table(std::int64_t rows, std::int64_t cols, DType dtype) {
    return dtype == DType::kFloat32 ? matrix(rows, cols) : bfloat16(rows, cols);
  }
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
                             DType dtype = DType::kBFloat16, bool gated = false) {
    const std::size_t num_values = static_cast<std::size_t>(out_features * in_features);
    PackedLinear& weight =
        packed_.emplace_back(out_features, in_features, dtype, num_values * sizeof(float), isa, gated);
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
  std::vector<float> values;  // enough for either dtype
  TensorView view;
  explicit KVMemory(std::int64_t num_layers, std::int64_t num_kv_heads = 1, DType dtype = DType::kBFloat16)
      : values(static_cast<std::size_t>(kNumBlocks * num_layers * 2 * num_kv_heads * kBlockSize * kHeadDim)),
        view(TensorView::dense(values.data(), dtype, {kNumBlocks, num_layers, 2, num_kv_heads, kBlockSize, kHeadDim})) {
  }
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

// Records the same calls twice: into a ModelGraph, and as closures over buffers that share nothing. Each op takes its
// options by the roll of a die.
class TwinGraph {
 public:
  TwinGraph(std::uint32_t seed, ThreadPool& pool, DType activation_dtype = DType::kBFloat16)
      : weights(seed), graph(fake_ops(), pool, activation_dtype), dtype_(activation_dtype) {}

  BufferId embedding(std::int64_t cols) {
    const TensorView table = weights.table(kVocab, cols, dtype_);
    const TensorView position_table = chance() ? weights.matrix(kMaxPositions, cols) : TensorView{};
    const float scale = chance() ? 1.0F : 2.5F;
    const BufferId out = buffer(RowKind::kTokens, cols, DType::kFloat32);
    graph.embedding(table, position_table, scale, out);
    steps_.push_back([=, this](const Batch& b) {
      fake_embedding({.token_ids = ints(b.token_ids),
                      .positions = ints(b.positions),
                      .table = table,
                      .position_table = position_table,
                      .out = view(out),
                      .scale = scale},
                     pool_);
    });
    return out;
  }
  // In float32 for what is added, else in the activation dtype.
  BufferId rms_norm(BufferId x, const BufferId* residual, bool in_float32 = false) {
    const BufferId out = buffer(at(x).rows, at(x).cols, in_float32 ? DType::kFloat32 : dtype_);
    const TensorView weight = weights.vector(at(x).cols);
    graph.rms_norm(x, residual, weight, 0.25F, out);
    const BufferId added = residual != nullptr ? *residual : -1;
    steps_.push_back([=, this](const Batch&) {
      fake_rms_norm({.x = view(x), .residual = view_of_any(added), .weight = weight, .out = view(out), .eps = 0.25F},
                    pool_);
    });
    return out;
  }
  BufferId layer_norm(BufferId x, const BufferId* residual) {
    const BufferId out = buffer(at(x).rows, at(x).cols, dtype_);
    const TensorView weight = weights.vector(at(x).cols);
    const TensorView bias = chance() ? weights.vector(at(x).cols) : TensorView{};
    graph.layer_norm(x, residual, weight, bias, 0.25F, out);
    const BufferId added = residual != nullptr ? *residual : -1;
    steps_.push_back([=, this](const Batch&) {
      fake_layer_norm({.x = view(x),
                       .residual = view_of_any(added),
                       .weight = weight,
                       .bias = bias,
                       .out = view(out),
                       .eps = 0.25F},
                      pool_);
    });
    return out;
  }
  BufferId linear(BufferId x, std::int64_t cols) {
    return linear(x, weights.packed(cols, at(x).cols, "fake", dtype_), {}, cols, DType::kFloat32);
  }
  BufferId activated_linear(BufferId x, std::int64_t cols) {
    const Activation kind = chance() ? Activation::kGelu : Activation::kRelu;
    return linear(x, weights.packed(cols, at(x).cols, "fake", dtype_), kind, cols, dtype_);
  }
  BufferId gated_linear(BufferId x, std::int64_t cols) {
    const Activation kind = chance() ? Activation::kSilu : Activation::kGeluTanh;
    return linear(x, weights.packed(2 * cols, at(x).cols, "fake", dtype_, /*gated=*/true), kind, cols, dtype_);
  }
  BufferId attention(BufferId qkv, std::int32_t layer, TensorView kv) {
    const std::int64_t q_cols = at(qkv).cols - 2 * kHeadDim;
    RotaryOptions rotary{.cos_sin = chance() ? weights.matrix(kMaxPositions, chance() ? kHeadDim : 2) : TensorView{}};
    if (chance()) {
      rotary.q_norm = weights.vector(kHeadDim);
      rotary.k_norm = weights.vector(kHeadDim);
      rotary.norm_eps = 0.5F;
    }
    AttentionOptions options{.scale = 0.5F};
    options.soft_cap = chance() ? 3.0F : 0.0F;
    options.window = chance() ? 2 : 0;
    options.alibi_slopes = chance() ? weights.vector(q_cols / kHeadDim) : TensorView{};
    const BufferId q = buffer(RowKind::kTokens, q_cols, dtype_);
    const BufferId out = buffer(RowKind::kTokens, q_cols, dtype_);
    graph.rotary_cache_write(qkv, layer, 1, kHeadDim, rotary, q);
    graph.paged_attention(q, layer, options, out);
    steps_.push_back([=, this](const Batch& b) {
      TensorView part =
          TensorView::dense(kv.ptr<std::byte>() + static_cast<std::size_t>(layer * kv.strides[1]) * size_of(dtype_),
                            dtype_, {kNumBlocks, 2, 1, kBlockSize, kHeadDim});
      part.strides[0] = kv.strides[0];
      const TensorView dense_q = view(q);
      const TensorView heads = TensorView::dense(dense_q.data, dtype_, {dense_q.shape[0], q_cols / kHeadDim, kHeadDim});
      fake_rotary_cache_write({.qkv = view(qkv),
                               .positions = ints(b.positions),
                               .slot_mapping = ints(b.slot_mapping),
                               .cos_sin = rotary.cos_sin,
                               .q_norm = rotary.q_norm,
                               .k_norm = rotary.k_norm,
                               .kv_cache = part,
                               .q = heads,
                               .norm_eps = rotary.norm_eps},
                              pool_);
      fake_paged_attention({.q = heads,
                            .kv_cache = part,
                            .query_start = ints(b.query_start),
                            .context_lens = ints(b.context_lens),
                            .block_tables = TensorView::dense(ints(b.block_tables).data, DType::kInt32, {2, 3}),
                            .alibi_slopes = options.alibi_slopes,
                            .out = view(out),
                            .scale = options.scale,
                            .soft_cap = options.soft_cap,
                            .window = options.window},
                           pool_);
    });
    return out;
  }
  void soft_cap(BufferId x) {
    graph.soft_cap(x, 30.0F);
    steps_.push_back([=, this](const Batch&) { fake_soft_cap({.x = view(x), .cap = 30.0F}, pool_); });
  }
  void add(BufferId x, BufferId y) {
    graph.add(x, y);
    steps_.push_back([=, this](const Batch&) { fake_add({.x = view(x), .y = view(y)}, pool_); });
  }
  BufferId gather_rows(BufferId x) {
    const BufferId out = buffer(RowKind::kSamples, at(x).cols, DType::kFloat32);
    graph.gather_rows(x, out);
    steps_.push_back([=, this](const Batch& b) {
      fake_gather_rows({.x = view(x), .rows = ints(b.sample_rows), .out = view(out)}, pool_);
    });
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
  BufferId buffer(RowKind rows, std::int64_t cols, DType dtype) {
    const BufferId id = graph.buffer(rows, cols, dtype);
    const std::int64_t max_rows = rows == RowKind::kTokens ? kMaxTokens : kMaxSamples;
    owned_.push_back({rows, cols, dtype, std::vector<float>(static_cast<std::size_t>(max_rows * cols))});
    return id;
  }
  BufferId linear(BufferId x, const PackedLinear& weight, std::optional<Activation> activation, std::int64_t cols,
                  DType dtype) {
    const TensorView bias = chance() ? weights.vector(weight.out_features()) : TensorView{};
    const BufferId out = buffer(at(x).rows, cols, dtype);
    graph.linear(x, weight, bias, out, activation);
    steps_.push_back([=, this, &weight](const Batch&) {
      fake_linear({.x = view(x), .weight = &weight, .bias = bias, .out = view(out), .activation = activation}, pool_);
    });
    return out;
  }
  bool chance() { return weights.random()() % 2 == 0; }
  Owned& at(BufferId id) { return owned_[static_cast<std::size_t>(id)]; }
  static TensorView ints(std::span<const std::int32_t> values) {
    return TensorView::dense(const_cast<std::int32_t*>(values.data()), DType::kInt32,
                             {static_cast<std::int64_t>(values.size())});
  }
  TensorView view(BufferId id) {
    Owned& owned = at(id);
    return TensorView::dense(owned.memory.data(), owned.dtype,
                             {owned.rows == RowKind::kTokens ? num_tokens_ : num_samples_, owned.cols});
  }

  TensorView view_of_any(BufferId id) { return id < 0 ? TensorView{} : view(id); }

  DType dtype_;
  ThreadPool pool_{1};
  std::deque<Owned> owned_;
  std::vector<std::function<void(const Batch&)>> steps_;
  std::int64_t num_tokens_ = 0;
  std::int64_t num_samples_ = 0;
};

}  // namespace fastpaged::testing
