#include "fastpaged/ops/op_cost.h"

#include <algorithm>
#include <vector>

#include "fastpaged/ops/kv_layout.h"
#include "fastpaged/ops/packed_linear.h"

namespace fastpaged {
namespace {

std::int64_t num_elements(const TensorView& view) {
  std::int64_t count = view.empty() ? 0 : 1;
  for (int axis = 0; axis < view.rank; ++axis) {
    count *= view.shape[static_cast<std::size_t>(axis)];
  }
  return count;
}

std::int64_t bytes_of(const TensorView& view) {
  return num_elements(view) * static_cast<std::int64_t>(size_of(view.dtype));
}

std::int64_t row_bytes(const TensorView& table) {
  return table.empty() ? 0 : table.shape[1] * static_cast<std::int64_t>(size_of(table.dtype));
}

// Of a key or a value, with the scale that codes have.
std::int64_t kv_vector_bytes(const TensorView& kv_cache) {
  const std::int64_t head_dim = kv_cache.shape[4];
  return is_kv_code(kv_cache.dtype) ? head_dim + kKVScaleBytes
                                    : head_dim * static_cast<std::int64_t>(size_of(kv_cache.dtype));
}

// x + residual (if given), written back, then `flops_per_element` on each element.
template <typename NormParams>
OpCost norm_cost(const NormParams& params, std::int64_t flops_per_element) {
  const bool adds = !params.residual.empty();
  return {.weight_bytes = bytes_of(params.weight),
          .activation_bytes = bytes_of(params.x) * (adds ? 2 : 1) + bytes_of(params.residual) + bytes_of(params.out),
          .flops = num_elements(params.x) * (flops_per_element + (adds ? 1 : 0))};
}

// The keys that queries at positions [first, end) see, added up: query p sees min(p + 1, window).
std::int64_t keys_seen(std::int64_t first, std::int64_t end, std::int64_t window) {
  const auto up_to = [window](std::int64_t position) {  // of the queries before it
    const std::int64_t growing = window == 0 ? position : std::min(position, window);
    return growing * (growing + 1) / 2 + (position - growing) * window;
  };
  return up_to(end) - up_to(first);
}

// Counts keys that lie in blocks, those of a block with the first sequence that reads it.
class KeyCounter {
 public:
  explicit KeyCounter(const PagedAttentionParams& params)
      : params_(params), is_counted_(static_cast<std::size_t>(params.kv_cache.shape[0])) {}

  // The keys [first, end) of a sequence.
  void add(std::int64_t sequence, std::int64_t first, std::int64_t end) {
    const auto* blocks = params_.block_tables.row<const std::int32_t>(sequence);
    const std::int64_t block_size = params_.kv_cache.shape[3];
    for (std::int64_t key = first; key < end;) {
      const std::int64_t end_of_block = std::min(end, (key / block_size + 1) * block_size);
      const auto block = static_cast<std::size_t>(blocks[key / block_size]);
      count_ += is_counted_[block] ? 0 : end_of_block - key;
      is_counted_[block] = true;
      key = end_of_block;
    }
  }
  [[nodiscard]] std::int64_t count() const { return count_; }

 private:
  const PagedAttentionParams& params_;
  std::vector<bool> is_counted_;  // by block
  std::int64_t count_ = 0;
};

}  // namespace

OpCost& OpCost::operator+=(const OpCost& other) {
  weight_bytes += other.weight_bytes;
  kv_bytes += other.kv_bytes;
  activation_bytes += other.activation_bytes;
  flops += other.flops;
  return *this;
}

OpCost op_cost(const EmbeddingParams& params) {
  const std::int64_t num_tokens = params.out.shape[0];
  const bool has_positions = !params.position_table.empty();
  return {.weight_bytes = num_tokens * (row_bytes(params.table) + row_bytes(params.position_table)),
          .activation_bytes = bytes_of(params.out),
          .flops = num_elements(params.out) * (has_positions ? 2 : 1)};
}

OpCost op_cost(const RmsNormParams& params) {
  return norm_cost(params, 4);  // square, sum, scale, weight
}

OpCost op_cost(const LayerNormParams& params) {
  const bool has_bias = !params.bias.empty();
  OpCost cost = norm_cost(params, has_bias ? 7 : 6);  // sum, difference, square, sum, scale, weight, bias
  cost.weight_bytes += bytes_of(params.bias);
  return cost;
}

OpCost op_cost(const LinearParams& params) {
  const PackedLinear& weight = *params.weight;
  const std::int64_t num_weights = weight.out_features() * weight.in_features();
  const std::int64_t num_rows = params.x.shape[0];
  const std::int64_t num_sums = num_rows * weight.out_features();
  const std::int64_t num_outputs = num_elements(params.out);  // half of the sums where the others gate them
  OpCost cost{.weight_bytes = num_weights * static_cast<std::int64_t>(size_of(weight.dtype())) + bytes_of(params.bias),
              .activation_bytes = bytes_of(params.x) + bytes_of(params.out) * (params.adds ? 2 : 1),
              .flops = 2 * num_rows * num_weights};
  cost.flops += params.bias.empty() ? 0 : num_sums;
  cost.flops += params.activation ? 2 * num_outputs : 0;
  cost.flops += params.adds ? num_outputs : 0;
  cost.flops += num_sums - num_outputs;  // a gate's product
  return cost;
}

OpCost op_cost(const RotaryCacheWriteParams& params) {
  const std::int64_t num_tokens = params.q.shape[0];
  const std::int64_t num_kv_heads = params.kv_cache.shape[2];
  const std::int64_t head_dim = params.q.shape[2];
  const std::int64_t num_rotated_heads = num_tokens * (params.q.shape[1] + num_kv_heads);
  const std::int64_t rotary = params.cos_sin.empty() ? 0 : params.cos_sin.shape[1];
  const std::int64_t norm_flops = params.q_norm.empty() ? 0 : 4 * head_dim;
  return {.weight_bytes = bytes_of(params.q_norm) + bytes_of(params.k_norm),
          .kv_bytes = num_tokens * 2 * num_kv_heads * kv_vector_bytes(params.kv_cache),
          // The table's rows are those of the layer before.
          .activation_bytes = bytes_of(params.qkv) + bytes_of(params.q) + num_tokens * row_bytes(params.cos_sin),
          .flops = num_rotated_heads * (3 * rotary + norm_flops)};
}

OpCost op_cost(const PagedAttentionParams& params) {
  const auto* query_start = params.query_start.ptr<const std::int32_t>();
  const auto* context_lens = params.context_lens.ptr<const std::int32_t>();
  KeyCounter keys_read(params);
  std::int64_t num_pairs = 0;  // of a query and a key that it sees
  for (std::int64_t s = 0; s < params.context_lens.shape[0]; ++s) {
    const std::int64_t end = context_lens[s];
    const std::int64_t first_query = end - (query_start[s + 1] - query_start[s]);
    const std::int64_t first_key = params.window == 0 ? 0 : std::max<std::int64_t>(0, first_query - params.window + 1);
    if (end > first_query) {
      keys_read.add(s, first_key, end);
    }
    num_pairs += keys_seen(first_query, end, params.window);
  }
  const std::int64_t num_heads = params.q.shape[1];
  const std::int64_t head_dim = params.q.shape[2];
  return {.kv_bytes = keys_read.count() * 2 * params.kv_cache.shape[2] * kv_vector_bytes(params.kv_cache),
          .activation_bytes = bytes_of(params.q) + bytes_of(params.out),
          .flops = num_pairs * num_heads * head_dim * 4};  // a product with the key, one with the value
}

OpCost op_cost(const SoftCapParams& params) {
  return {.activation_bytes = 2 * bytes_of(params.x), .flops = 3 * num_elements(params.x)};
}

OpCost op_cost(const AddParams& params) {
  return {.activation_bytes = 2 * bytes_of(params.x) + bytes_of(params.y), .flops = num_elements(params.x)};
}

OpCost op_cost(const GatherRowsParams& params) {
  return {.activation_bytes = 2 * bytes_of(params.out)};
}

}  // namespace fastpaged
