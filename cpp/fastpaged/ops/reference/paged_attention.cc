#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "fastpaged/ops/bfloat16.h"
#include "fastpaged/ops/kv_layout.h"
#include "fastpaged/ops/reference/exp.h"
#include "fastpaged/ops/reference/for_each_tile.h"
#include "fastpaged/ops/reference/ops.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::reference {
namespace {

float dot(const BFloat16* a, const BFloat16* b, std::int64_t size) {
  float sum = 0.0F;
  for (std::int64_t i = 0; i < size; ++i) {
    sum += to_float(a[i]) * to_float(b[i]);
  }
  return sum;
}

// One query head over the keys of positions [0, num_keys). blocks: the sequence's row of the block tables.
void attend(const PagedAttentionParams& params, const KVLayout& cache, const std::int32_t* blocks, std::int64_t t,
            std::int64_t head, std::int64_t num_keys) {
  const std::int64_t head_dim = params.q.shape[2];
  const std::int64_t kv_head = head / (params.q.shape[1] / cache.num_kv_heads);
  const BFloat16* q = params.q.row<const BFloat16>(t) + head * head_dim;

  thread_local std::vector<float> weights;  // of one thread, for as long as it lives: no allocation per head
  weights.resize(static_cast<std::size_t>(num_keys));
  float largest = -std::numeric_limits<float>::infinity();
  for (std::int64_t j = 0; j < num_keys; ++j) {
    const BFloat16* key = cache.key(blocks[j / cache.block_size], kv_head, j % cache.block_size);
    weights[j] = dot(q, key, head_dim) * params.scale;
    largest = std::max(largest, weights[j]);
  }

  float sum = 0.0F;
  std::array<float, kMaxHeadDim> mix{};
  for (std::int64_t j = 0; j < num_keys; ++j) {
    const float weight = exp(weights[j] - largest);
    const BFloat16* value = cache.value(blocks[j / cache.block_size], kv_head, j % cache.block_size);
    sum += weight;
    for (std::int64_t i = 0; i < head_dim; ++i) {
      mix[i] += weight * to_float(value[i]);
    }
  }
  BFloat16* out = params.out.row<BFloat16>(t) + head * head_dim;
  for (std::int64_t i = 0; i < head_dim; ++i) {
    out[i] = to_bfloat16(mix[i] / sum);
  }
}

}  // namespace

void paged_attention(const PagedAttentionParams& params, ThreadPool& pool) {
  validate(params);
  const KVLayout cache(params.kv_cache);
  const auto* query_start = params.query_start.ptr<const std::int32_t>();
  const auto* context_lens = params.context_lens.ptr<const std::int32_t>();
  const std::int32_t* query_end = query_start + params.query_start.shape[0];
  for_each_tile(pool, params.q.shape[0], [&](std::int64_t t) {
    const std::int64_t s = std::upper_bound(query_start, query_end, t) - query_start - 1;
    const std::int64_t num_keys = context_lens[s] - (query_start[s + 1] - 1 - t);
    for (std::int64_t head = 0; head < params.q.shape[1]; ++head) {
      attend(params, cache, params.block_tables.row<const std::int32_t>(s), t, head, num_keys);
    }
  });
}

}  // namespace fastpaged::reference
