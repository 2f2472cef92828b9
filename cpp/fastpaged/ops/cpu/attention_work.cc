#include "fastpaged/ops/cpu/attention_work.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace fastpaged::cpu {
namespace {

// With fewer work items than this, the spans of long contexts are computed apart, as long as their partials take no
// more memory than that. A matter of shape, not of threads; and of speed alone: the bits are the same.
constexpr std::int64_t kEnoughWorks = 128;
constexpr std::int64_t kMaxPartialFloats = std::int64_t{16} << 20;

// Calls fn for each work item, in the order of the plan.
template <typename Fn>
void for_each_work(const PagedAttentionParams& params, const Fn& fn) {
  const std::int64_t num_kv_heads = params.kv_cache.shape[2];
  const std::int64_t group_size = params.q.shape[1] / num_kv_heads;
  for (std::int64_t s = 0; s < params.context_lens.shape[0]; ++s) {
    const auto* query_start = params.query_start.ptr<const std::int32_t>() + s;
    const std::int64_t num_queries = query_start[1] - query_start[0];
    const std::int64_t first_position = params.context_lens.ptr<const std::int32_t>()[s] - num_queries;
    const std::int64_t num_rows = num_queries * group_size;
    for (std::int64_t row = 0; row < num_rows; row += kRowsPerWork) {
      const std::int64_t row_end = std::min(num_rows, row + kRowsPerWork);
      const std::int64_t first_span = first_seen(first_position + row / group_size, params.window) / kSpan;
      const std::int64_t last_span = (first_position + (row_end - 1) / group_size) / kSpan;
      for (std::int64_t head = 0; head < num_kv_heads; ++head) {
        fn(AttentionWork{.sequence = s,
                         .kv_head = head,
                         .row_begin = row,
                         .row_end = row_end,
                         .first_span = first_span,
                         .num_spans = last_span - first_span + 1});
      }
    }
  }
}

struct PlanSizes {
  std::int64_t works = 0;
  std::int64_t tiles = 0;
  std::int64_t joins = 0;
  std::int64_t partial_rows = 0;
  bool spans_apart = false;
};

PlanSizes measure(const PagedAttentionParams& params, std::int64_t partial_size) {
  PlanSizes apart{.spans_apart = true};
  for_each_work(params, [&](const AttentionWork& work) {
    ++apart.works;
    apart.tiles += work.num_spans;
    if (work.num_spans > 1) {
      ++apart.joins;
      apart.partial_rows += work.num_spans * (work.row_end - work.row_begin);
    }
  });
  const bool worthwhile = apart.works < kEnoughWorks && apart.partial_rows * partial_size <= kMaxPartialFloats;
  return worthwhile ? apart : PlanSizes{.works = apart.works, .tiles = apart.works};
}

template <typename T>
std::size_t bytes_of(std::int64_t count) {
  return static_cast<std::size_t>(count) * sizeof(T);
}

// The next `count` elements of what lies at `memory`, which moves on.
template <typename T>
std::span<T> take(std::byte*& memory, std::int64_t count) {
  static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= alignof(std::int64_t));
  const std::span<T> taken(reinterpret_cast<T*>(memory), static_cast<std::size_t>(count));
  memory += taken.size_bytes();
  return taken;
}

}  // namespace

AttentionPlan plan_attention(const PagedAttentionParams& params, std::int64_t partial_size, Workspace& workspace) {
  const PlanSizes sizes = measure(params, partial_size);
  std::byte* memory =
      workspace.reserve(bytes_of<AttentionWork>(sizes.works) + bytes_of<AttentionTile>(sizes.tiles) +
                        bytes_of<std::int64_t>(sizes.joins) + bytes_of<float>(sizes.partial_rows * partial_size));
  AttentionPlan plan;
  plan.works = take<AttentionWork>(memory, sizes.works);
  plan.tiles = take<AttentionTile>(memory, sizes.tiles);
  plan.joins = take<std::int64_t>(memory, sizes.joins);
  plan.partials = take<float>(memory, sizes.partial_rows * partial_size).data();

  auto next_work = plan.works.begin();
  auto next_tile = plan.tiles.begin();
  auto next_join = plan.joins.begin();
  std::int64_t partials = 0;
  for_each_work(params, [&](AttentionWork work) {
    const std::int64_t index = next_work - plan.works.begin();
    const bool apart = sizes.spans_apart && work.num_spans > 1;
    if (apart) {
      work.partials = partials;
      partials += work.num_spans * (work.row_end - work.row_begin) * partial_size;
      *next_join++ = index;
    }
    for (std::int64_t span = 0; span < (apart ? work.num_spans : 1); ++span) {
      *next_tile++ = {index, span};
    }
    *next_work++ = work;
  });
  return plan;
}

}  // namespace fastpaged::cpu
