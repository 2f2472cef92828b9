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
// Spans of work from which on a tile is large enough.
constexpr std::int64_t kSpansPerTile = 3;

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
    // The last rows first: they see the most, and what is left at the end should be small.
    for (std::int64_t row = (num_rows - 1) / kRowsPerWork * kRowsPerWork; row >= 0; row -= kRowsPerWork) {
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
  std::int64_t apart_tiles = 0;  // if spans are apart; else there are at most as many as works
  std::int64_t partial_rows = 0;
  bool spans_apart = false;
};

PlanSizes measure(const PagedAttentionParams& params, std::int64_t partial_size) {
  PlanSizes sizes;
  for_each_work(params, [&](const AttentionWork& work) {
    ++sizes.works;
    sizes.apart_tiles += work.num_spans;
    if (work.num_spans > 1) {
      sizes.partial_rows += work.num_spans * (work.row_end - work.row_begin);
    }
  });
  sizes.spans_apart = sizes.works < kEnoughWorks && sizes.partial_rows * partial_size <= kMaxPartialFloats;
  if (!sizes.spans_apart) {
    sizes.partial_rows = 0;
  }
  return sizes;
}

// Cuts works into tiles, in order.
class TileCutter {
 public:
  explicit TileCutter(std::span<AttentionTile> room) : room_(room) {}

  void add_apart(std::int64_t work, std::int64_t num_spans) {
    for (std::int64_t span = 0; span < num_spans; ++span) {
      room_[count_++] = {work, 1, span};
    }
    num_spans_ = kSpansPerTile;  // nothing joins these
  }
  // To the last tile, as long as it is small.
  void add_whole(std::int64_t work, std::int64_t num_spans) {
    if (count_ == 0 || num_spans_ >= kSpansPerTile) {
      room_[count_++] = {work, 0, 0};
      num_spans_ = 0;
    }
    ++room_[count_ - 1].num_works;
    num_spans_ += num_spans;
  }
  [[nodiscard]] std::span<AttentionTile> tiles() const { return room_.first(count_); }

 private:
  std::span<AttentionTile> room_;
  std::size_t count_ = 0;
  std::int64_t num_spans_ = 0;  // of the last tile
};

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
  const std::int64_t max_tiles = sizes.spans_apart ? sizes.apart_tiles : sizes.works;
  std::byte* memory = workspace.reserve(bytes_of<AttentionWork>(sizes.works) + bytes_of<AttentionTile>(max_tiles) +
                                        bytes_of<float>(sizes.partial_rows * partial_size));
  AttentionPlan plan;
  plan.works = take<AttentionWork>(memory, sizes.works);
  TileCutter cutter(take<AttentionTile>(memory, max_tiles));
  plan.partials = take<float>(memory, sizes.partial_rows * partial_size).data();

  auto next_work = plan.works.begin();
  std::int64_t partials = 0;
  for_each_work(params, [&](AttentionWork work) {
    const std::int64_t index = next_work - plan.works.begin();
    if (sizes.spans_apart && work.num_spans > 1) {
      work.partials = partials;
      work.num_pending = work.num_spans;
      partials += work.num_spans * (work.row_end - work.row_begin) * partial_size;
      cutter.add_apart(index, work.num_spans);
    } else if (sizes.works < kEnoughWorks) {
      cutter.add_apart(index, 1);
    } else {
      cutter.add_whole(index, work.num_spans * ((work.row_end - work.row_begin + 15) / 16));
    }
    *next_work++ = work;
  });
  plan.tiles = cutter.tiles();
  return plan;
}

}  // namespace fastpaged::cpu
