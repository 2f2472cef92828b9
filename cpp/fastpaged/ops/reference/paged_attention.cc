#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "fastpaged/ops/element.h"
#include "fastpaged/ops/reference/exp.h"
#include "fastpaged/ops/reference/for_each_tile.h"
#include "fastpaged/ops/reference/kv_access.h"
#include "fastpaged/ops/reference/ops.h"
#include "fastpaged/ops/reference/tanh.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::reference {
namespace {

// distance: of the key's position from the query's, <= 0.
float score_of(const PagedAttentionParams& params, float product, std::int64_t head, std::int64_t distance) {
  float score = product * params.scale;
  if (params.soft_cap > 0.0F) {
    score = params.soft_cap * tanh(score / params.soft_cap);
  }
  if (!params.alibi_slopes.empty()) {
    score += params.alibi_slopes.ptr<const float>()[head] * static_cast<float>(distance);
  }
  return score;
}

// One query head at `position`, over the keys it sees. blocks: the sequence's row of the block tables.
template <typename A, typename Cache>
void attend(const PagedAttentionParams& params, const Cache& cache, const std::int32_t* blocks, std::int64_t t,
            std::int64_t head, std::int64_t position) {
  const std::int64_t head_dim = params.q.shape[2];
  const std::int64_t kv_head = head / (params.q.shape[1] / cache.num_kv_heads());
  const std::int64_t first = params.window == 0 ? 0 : std::max<std::int64_t>(0, position - params.window + 1);
  const A* q = params.q.row<const A>(t) + head * head_dim;

  thread_local std::vector<float> weights;  // of one thread, for as long as it lives: no allocation per head
  weights.resize(static_cast<std::size_t>(position - first + 1));
  float largest = -std::numeric_limits<float>::infinity();
  for (std::int64_t j = first; j <= position; ++j) {
    const std::int64_t block = blocks[j / cache.block_size()];
    float product = 0.0F;
    for (std::int64_t i = 0; i < head_dim; ++i) {
      product += to_float(q[i]) * cache.key(block, kv_head, j % cache.block_size(), i);
    }
    weights[j - first] = score_of(params, product, head, j - position);
    largest = std::max(largest, weights[j - first]);
  }

  float sum = 0.0F;
  std::array<float, kMaxHeadDim> mix{};
  for (std::int64_t j = first; j <= position; ++j) {
    const float weight = exp(weights[j - first] - largest);
    const std::int64_t block = blocks[j / cache.block_size()];
    sum += weight;
    for (std::int64_t i = 0; i < head_dim; ++i) {
      mix[i] += weight * cache.value(block, kv_head, j % cache.block_size(), i);
    }
  }
  A* out = params.out.row<A>(t) + head * head_dim;
  for (std::int64_t i = 0; i < head_dim; ++i) {
    out[i] = rounded_to<A>(mix[i] / sum);
  }
}

}  // namespace

void paged_attention(const PagedAttentionParams& params, ThreadPool& pool) {
  validate(params);
  const auto* query_start = params.query_start.ptr<const std::int32_t>();
  const auto* context_lens = params.context_lens.ptr<const std::int32_t>();
  const std::int32_t* query_end = query_start + params.query_start.shape[0];
  with_kv_access(params.kv_cache, params.q.dtype, [&](const auto& cache, auto element) {
    for_each_tile(pool, params.q.shape[0], [&](std::int64_t t) {
      const std::int64_t s = std::upper_bound(query_start, query_end, t) - query_start - 1;
      const std::int64_t position = context_lens[s] - (query_start[s + 1] - t);
      for (std::int64_t head = 0; head < params.q.shape[1]; ++head) {
        attend<decltype(element)>(params, cache, params.block_tables.row<const std::int32_t>(s), t, head, position);
      }
    });
  });
}

}  // namespace fastpaged::reference
