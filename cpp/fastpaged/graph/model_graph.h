// ModelGraph: a model's forward pass, recorded once, run every step with no Python.
//
// Recording: buffer() names a value, each op call appends a node. finalize() places the buffers in one arena by
// liveness for the token budget. run() sets the row counts of the step and calls the op table, node by node.
//
// Invariants (check_invariants):
//   1. every buffer lies inside the arena, on a multiple of Arena::kAlignment;
//   2. buffers alive at the same node do not overlap;
//   3. the output overlaps no other buffer: it stays as it is until the next run;
//   4. the KV cache, once bound, has every layer that is recorded.
// Not thread-safe: one thread records and runs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fastpaged/base/batch.h"
#include "fastpaged/base/tensor_view.h"
#include "fastpaged/base/thread_pool.h"
#include "fastpaged/graph/arena.h"
#include "fastpaged/graph/buffer_placement.h"
#include "fastpaged/graph/check_batch.h"
#include "fastpaged/graph/node.h"
#include "fastpaged/graph/op_times.h"
#include "fastpaged/ops/op_table.h"
#include "fastpaged/ops/workspace.h"

namespace fastpaged {

class ModelGraph {
 public:
  // activation_dtype: bfloat16 or float32, of what feeds the linear layers, of their weights and of the KV cache,
  // but where that is of 8 bits; called A below. REQUIRES: ops and pool outlive the graph.
  ModelGraph(const OpTable& ops, ThreadPool& pool, DType activation_dtype);

  BufferId buffer(RowKind rows, std::int64_t cols, DType dtype);  // dtype: float32 or A

  // Each appends one node, or throws std::invalid_argument naming what does not match and changes nothing. A buffer is
  // read only after it was written, and is the `out` of one node alone. Weight views must outlive the graph; where one
  // may be left out, it is empty().
  void embedding(const TensorView& table, const TensorView& position_table, float scale, BufferId out);
  // residual may be null. With one, x is updated in place: whatever reads x later reads the sum. out: A or float32.
  void rms_norm(BufferId x, const BufferId* residual, const TensorView& weight, float eps, BufferId out);
  void layer_norm(BufferId x, const BufferId* residual, const TensorView& weight, const TensorView& bias, float eps,
                  BufferId out);
  // out: float32; A with an activation, and half as wide where the weight is gated, which needs one.
  void linear(BufferId x, const PackedLinear& weight, const TensorView& bias, BufferId out,
              std::optional<Activation> activation = {});
  // qkv: [T, (Hq + 2 num_kv_heads) * head_dim], q: [T, Hq * head_dim]
  void rotary_cache_write(BufferId qkv, std::int32_t layer, std::int64_t num_kv_heads, std::int64_t head_dim,
                          const RotaryOptions& options, BufferId q);
  void paged_attention(BufferId q, std::int32_t layer, const AttentionOptions& options, BufferId out);
  void soft_cap(BufferId x, float cap);  // in place: whatever reads x later reads what became of it
  // x += y, in place. Where y is what the last node, a linear, writes, that node adds it to x instead, and nothing may
  // read y itself any more.
  void add(BufferId x, BufferId y);
  void gather_rows(BufferId x, BufferId out);

  // output: a kSamples float32 buffer [R, vocab]. Nothing can be recorded afterwards. Throws std::invalid_argument, or
  // std::bad_alloc where the budget is too large for the address space; the graph then stays as it was.
  void finalize(BufferId output, std::int64_t max_num_tokens, std::int64_t max_num_samples);
  // [num_blocks, num_layers, 2, Hkv, block_size, D] A; or bytes of an 8-bit dtype, [num_blocks, num_layers, 2, Hkv,
  // block_size * (D + 4)]. Must outlive the graph's runs. Layers recorded later must be among its own.
  void bind_kv_cache(const TensorView& kv_cache);
  // Allocates nothing once the ops' working memory has grown to the largest step. With no samples the nodes on sampled
  // rows are left out; with no tokens nothing runs. Throws std::invalid_argument for a batch beyond the budget or with
  // an index that leaves its table.
  void run(const Batch& batch);
  [[nodiscard]] TensorView output() const;  // [R, vocab] float32 of the last run

  [[nodiscard]] DType activation_dtype() const { return activation_dtype_; }
  [[nodiscard]] std::size_t arena_bytes() const { return arena_.num_bytes(); }
  [[nodiscard]] std::string describe() const;  // one line per node, for people
  // From now on every run counts its ops, their time and what the limits allow, which costs two readings of a clock a
  // node. Anew: what was counted before is forgotten.
  void time_ops(const MachineLimits& limits = {}) { op_times_.emplace(limits); }
  [[nodiscard]] const std::optional<OpTimes>& op_times() const { return op_times_; }
  // Nodes that have run, over all runs; any thread may ask, in the middle of one too.
  [[nodiscard]] std::uint64_t num_nodes_run() const { return num_nodes_run_.load(std::memory_order_relaxed); }
  void check_invariants() const;

 private:
  // What rms_norm and layer_norm have in common: all but the params, with `out` checked but not yet written.
  Node norm_node(const char* op, BufferId x, const BufferId* residual, const TensorView& weight, float eps,
                 BufferId out);
  void require_addend(const char* op, const char* argument, BufferId addend, BufferId x);
  bool fold_into_linear(BufferId x, BufferId y);  // add(x, y), if the last node can do it
  void limit_positions(std::int64_t num_rows);    // of a table by position
  Buffer& at(const char* op, const char* argument, BufferId id);
  Buffer& readable(const char* op, const char* argument, BufferId id, DType dtype);
  Buffer& writable(const char* op, const char* argument, BufferId id, DType dtype, RowKind rows, std::int64_t cols);
  void bind_kv_codes(const TensorView& bytes);
  void require_recording(const char* op) const;
  void set_kv_shape(const char* op, std::int32_t layer, std::int64_t num_kv_heads, std::int64_t head_dim);
  [[nodiscard]] std::vector<Lifetime> lifetimes(BufferId output, std::int64_t max_num_tokens,
                                                std::int64_t max_num_samples) const;

  [[nodiscard]] TensorView view(std::optional<BufferId> id) const;   // this step's rows; empty() for none
  [[nodiscard]] TensorView heads(std::optional<BufferId> id) const;  // the same, split into heads
  [[nodiscard]] TensorView kv_layer(std::int32_t layer) const;
  void run_node(EmbeddingParams& params, const Node& node, const Batch& batch);
  void run_node(RmsNormParams& params, const Node& node, const Batch& batch);
  void run_node(LayerNormParams& params, const Node& node, const Batch& batch);
  void run_node(LinearParams& params, const Node& node, const Batch& batch);
  void run_node(RotaryCacheWriteParams& params, const Node& node, const Batch& batch);
  void run_node(PagedAttentionParams& params, const Node& node, const Batch& batch);
  void run_node(SoftCapParams& params, const Node& node, const Batch& batch);
  void run_node(AddParams& params, const Node& node, const Batch& batch);
  void run_node(GatherRowsParams& params, const Node& node, const Batch& batch);

  const OpTable* ops_;
  ThreadPool* pool_;
  DType activation_dtype_;
  std::vector<Buffer> buffers_;
  std::vector<Node> nodes_;
  std::optional<BufferId> output_;  // set by finalize()
  Arena arena_;
  Workspace workspace_;  // of the ops, one after the other
  std::optional<OpTimes> op_times_;
  BatchLimits limits_;
  TensorView kv_cache_;
  std::int64_t num_layers_ = 0;  // of the KV cache, as far as recorded
  std::int64_t num_kv_heads_ = 0;
  std::int64_t head_dim_ = 0;
  std::int64_t num_tokens_ = 0;  // of the last run
  std::int64_t num_samples_ = 0;
  std::atomic<std::uint64_t> num_nodes_run_{0};
};

}  // namespace fastpaged
