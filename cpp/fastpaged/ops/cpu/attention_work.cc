#include "fastpaged/ops/cpu/attention_work.h"

#include <algorithm>

namespace fastpaged::cpu {
namespace {

// With fewer work items than this, the spans of long contexts are computed apart. A matter of shape, not of threads.
constexpr std::size_t kEnoughWorks = 128;

void add_sequence(const PagedAttentionParams& params, std::int64_t s, std::vector<AttentionWork>& works) {
  const auto* query_start = params.query_start.ptr<const std::int32_t>() + s;
  const std::int64_t num_queries = query_start[1] - query_start[0];
  const std::int64_t first_position = params.context_lens.ptr<const std::int32_t>()[s] - num_queries;
  const std::int64_t num_kv_heads = params.kv_cache.shape[2];
  const std::int64_t group_size = params.q.shape[1] / num_kv_heads;
  const std::int64_t num_rows = num_queries * group_size;
  for (std::int64_t row = 0; row < num_rows; row += kRowsPerWork) {
    const std::int64_t row_end = std::min(num_rows, row + kRowsPerWork);
    const std::int64_t last_position = first_position + (row_end - 1) / group_size;
    for (std::int64_t head = 0; head < num_kv_heads; ++head) {
      works.push_back({.sequence = s,
                       .kv_head = head,
                       .row_begin = row,
                       .row_end = row_end,
                       .num_spans = last_position / kSpan + 1});
    }
  }
}

}  // namespace

AttentionPlan plan_attention(const PagedAttentionParams& params, std::int64_t partial_size) {
  AttentionPlan plan;
  for (std::int64_t s = 0; s < params.context_lens.shape[0]; ++s) {
    add_sequence(params, s, plan.works);
  }
  const bool few = plan.works.size() < kEnoughWorks;
  for (std::size_t i = 0; i < plan.works.size(); ++i) {
    AttentionWork& work = plan.works[i];
    const bool apart = few && work.num_spans > 1;
    if (apart) {
      work.partials = static_cast<std::int64_t>(plan.partials_size);
      plan.partials_size += static_cast<std::size_t>(work.num_spans * (work.row_end - work.row_begin) * partial_size);
      plan.joins.push_back(static_cast<std::int64_t>(i));
    }
    for (std::int64_t span = 0; span < (apart ? work.num_spans : 1); ++span) {
      plan.tiles.push_back({static_cast<std::int64_t>(i), span});
    }
  }
  return plan;
}

void AttentionProblem::locate_keys(const AttentionWork& work, std::int64_t first_key, std::int64_t num_keys,
                                   const BFloat16** key_at) const {
  const auto* blocks = params_.block_tables.row<const std::int32_t>(work.sequence);
  const std::int64_t end = first_key + num_keys;
  for (std::int64_t position = first_key; position < end;) {
    const std::int64_t block_end = std::min(end, (position / cache_.block_size + 1) * cache_.block_size);
    const BFloat16* key = cache_.key(blocks[position / cache_.block_size], work.kv_head, position % cache_.block_size);
    for (; position < block_end; ++position, key += cache_.token_stride) {
      *key_at++ = key;
    }
  }
}

}  // namespace fastpaged::cpu
