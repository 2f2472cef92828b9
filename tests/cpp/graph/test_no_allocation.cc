#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fastpaged/graph/model_graph.h"
#include "graph/counted_allocations.h"
#include "graph/fake_ops.h"
#include "graph/twin_graph.h"

namespace fastpaged {
namespace {

using testing::num_allocations;

TEST_CASE("a run allocates nothing") {
  ThreadPool pool(1);
  ModelGraph graph(testing::fake_ops(), pool, DType::kBFloat16);
  std::vector<BFloat16> table(8 * 4);
  const std::vector<float> weight(4, 1.0F);
  const BufferId x = graph.buffer(RowKind::kTokens, 4, DType::kFloat32);
  const BufferId rows = graph.buffer(RowKind::kSamples, 4, DType::kFloat32);
  const BufferId h = graph.buffer(RowKind::kSamples, 4, DType::kBFloat16);
  const BufferId out = graph.buffer(RowKind::kSamples, 2, DType::kFloat32);
  PackedLinear head(2, 4, DType::kBFloat16, 2 * 4 * sizeof(float), "fake");
  graph.embedding(TensorView::dense(table.data(), DType::kBFloat16, {8, 4}), {}, 1.0F, x);
  graph.gather_rows(x, rows);
  graph.rms_norm(rows, nullptr, TensorView::dense(const_cast<float*>(weight.data()), DType::kFloat32, {4}), 0.0F, h);
  graph.linear(h, head, {}, out);
  graph.finalize(out, 16, 16);

  const std::vector<std::int32_t> token_ids = {1, 2, 7};
  const std::vector<std::int32_t> sample_rows = {2};
  Batch batch;
  batch.token_ids = token_ids;
  batch.sample_rows = sample_rows;
  const int before = num_allocations();
  graph.run(batch);
  CHECK(num_allocations() - before == 0);
  const std::vector<float> counted(5);
  CHECK(num_allocations() - before >= 1);
}

constexpr std::int64_t kRealHeadDim = 16;
constexpr std::int64_t kRealBlockSize = 16;
constexpr std::int64_t kRealBlocks = 130;

// One layer of a model with every op and option in it, for a real op table.
BufferId record_layer(ModelGraph& graph, testing::Weights& weights, const PackedLinear& square,
                      const PackedLinear& gated) {
  const DType dtype = graph.activation_dtype();
  const auto tokens = [&](std::int64_t cols, DType of) { return graph.buffer(RowKind::kTokens, cols, of); };
  const BufferId x = tokens(64, DType::kFloat32);
  graph.embedding(weights.table(testing::kVocab, 64, dtype), weights.matrix(2048, 64), 2.0F, x);
  const BufferId h = tokens(64, dtype);
  graph.layer_norm(x, nullptr, weights.vector(64), weights.vector(64), 1e-5F, h);
  const BufferId qkv = tokens(64, DType::kFloat32);
  graph.linear(h, square, weights.vector(64), qkv);
  const BufferId q = tokens(32, dtype);
  graph.rotary_cache_write(qkv, 0, 1, kRealHeadDim,
                           {.cos_sin = weights.matrix(2048, 8),
                            .q_norm = weights.vector(kRealHeadDim),
                            .k_norm = weights.vector(kRealHeadDim),
                            .norm_eps = 1e-6F},
                           q);
  const BufferId attended = tokens(32, dtype);
  graph.paged_attention(q, 0, {.scale = 0.25F}, attended);
  const BufferId windowed = tokens(32, dtype);
  graph.paged_attention(q, 0, {.scale = 0.25F, .soft_cap = 5.0F, .window = 700, .alibi_slopes = weights.vector(2)},
                        windowed);
  graph.add(x, qkv);
  const BufferId inner = tokens(64, dtype);
  graph.rms_norm(x, nullptr, weights.vector(64), 1e-5F, inner);
  const BufferId active = tokens(64, dtype);
  graph.linear(inner, square, weights.vector(64), active, Activation::kGelu);
  graph.linear(active, gated, {}, tokens(32, dtype), Activation::kSilu);
  const BufferId folded = tokens(64, DType::kFloat32);
  graph.linear(active, square, {}, folded);
  graph.add(x, folded);
  const BufferId apart = tokens(64, DType::kFloat32);
  graph.linear(active, square, {}, apart);
  graph.rms_norm(x, &apart, weights.vector(64), 1e-5F, tokens(64, dtype));
  graph.soft_cap(x, 30.0F);
  const BufferId rows = graph.buffer(RowKind::kSamples, 64, DType::kFloat32);
  graph.gather_rows(x, rows);
  return rows;
}

// Sequences of the same number of queries at the end of contexts of the same length, all over the same blocks.
struct RealBatch {
  std::vector<std::int32_t> token_ids, positions, slot_mapping, query_start{0}, context_lens, block_tables;
  std::vector<std::int32_t> sample_rows{0};

  RealBatch(std::int32_t num_sequences, std::int32_t num_queries, std::int32_t context_len) {
    for (std::int32_t s = 0; s < num_sequences; ++s) {
      for (std::int32_t position = context_len - num_queries; position < context_len; ++position) {
        token_ids.push_back(position % static_cast<std::int32_t>(testing::kVocab));
        positions.push_back(position);
        slot_mapping.push_back(position);
      }
      query_start.push_back(query_start.back() + num_queries);
      context_lens.push_back(context_len);
      for (std::int32_t block = 0; block < kRealBlocks; ++block) {
        block_tables.push_back(block);
      }
    }
  }
  [[nodiscard]] Batch batch() const {
    return {token_ids, positions, slot_mapping, query_start, context_lens, block_tables, kRealBlocks, sample_rows};
  }
};

TEST_CASE("with the real ops a run allocates nothing once it has seen its largest steps") {
  ThreadPool pool(1);
  const RealBatch steps[] = {
      {1, 300, 300},   // prefill over two spans of keys
      {3, 1, 2000},    // decode, few sequences: the spans of a context are computed apart
      {130, 1, 300},   // decode, many sequences: one work item each
      {2, 100, 2000},  // a chunk deep in a context
  };
  for (const std::string& isa : supported_isas()) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
      const OpTable& ops = op_table(isa);
      testing::Weights weights(1);
      const std::vector<TensorView> parts = {weights.matrix(64, 64)};
      const PackedLinear square = ops.pack_linear(parts, dtype, pool);
      const PackedLinear gated = ops.pack_gated_linear(parts, dtype, pool);
      std::vector<float> kv(static_cast<std::size_t>(kRealBlocks * 2 * kRealBlockSize * kRealHeadDim));
      ModelGraph graph(ops, pool, dtype);
      const BufferId output = record_layer(graph, weights, square, gated);
      graph.finalize(output, 512, 4);
      graph.bind_kv_cache(TensorView::dense(kv.data(), dtype, {kRealBlocks, 1, 2, 1, kRealBlockSize, kRealHeadDim}));
      for (const RealBatch& step : steps) {
        graph.run(step.batch());
      }
      const int before = num_allocations();
      for (const RealBatch& step : steps) {
        graph.run(step.batch());
      }
      const int num_during = num_allocations() - before;
      CAPTURE(isa);
      CAPTURE(dtype);
      CHECK(num_during == 0);
    }
  }
}

}  // namespace
}  // namespace fastpaged
