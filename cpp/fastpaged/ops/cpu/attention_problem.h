// AttentionProblem: where the rows of a work item find their queries, keys and outputs. No arithmetic.
// A: the activation dtype, BFloat16 or float.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fastpaged/ops/cpu/attention_work.h"
#include "fastpaged/ops/kv_layout.h"
#include "fastpaged/ops/params.h"

namespace fastpaged::cpu {

constexpr std::int64_t kTilesPerSpan = kSpan / kKeyTile;

struct KeyRange {
  std::int64_t begin;
  std::int64_t end;
  [[nodiscard]] bool empty() const { return begin >= end; }
};

// The tiles that the keys lie in; both counted from the same key, the first of a tile.
constexpr KeyRange tiles_of(KeyRange keys) {
  return {keys.begin / kKeyTile, (keys.end + kKeyTile - 1) / kKeyTile};
}

// Where tiles of a span lie, each in the order of KVLayout, and beside each the tile that is read somewhat later: as
// one is read, line by line, the other is fetched from memory.
template <typename A>
struct SpanTiles {
  const A* keys[kTilesPerSpan];
  const A* values[kTilesPerSpan];
  const A* after_keys[kTilesPerSpan];
  const A* after_values[kTilesPerSpan];
};

// One query of one head.
struct AttentionRow {
  std::int64_t token;
  std::int64_t position;
  std::int64_t query_head;
};

// What one row knows after one or more spans: out = mix / sum, both relative to 2^largest.
struct Partial {
  float* largest;
  float* sum;
  float* mix;  // [D]
};

constexpr std::int64_t partial_size_of(std::int64_t head_dim) {  // floats; mix begins with the second 64 bytes
  return head_dim + 16;
}

template <typename A>
class AttentionProblem {
 public:
  explicit AttentionProblem(const PagedAttentionParams& params)  // REQUIRES: valid params in A; they outlive this
      : params_(params), cache_(params.kv_cache), group_size_(params.q.shape[1] / cache_.num_kv_heads()) {}

  [[nodiscard]] const PagedAttentionParams& params() const { return params_; }
  [[nodiscard]] const KVLayout<A>& cache() const { return cache_; }
  [[nodiscard]] std::int64_t head_dim() const { return params_.q.shape[2]; }

  [[nodiscard]] std::int64_t partial_size() const { return partial_size_of(head_dim()); }
  [[nodiscard]] Partial partial(float* partials, std::int64_t row) const {
    float* at = partials + row * partial_size();
    return {at, at + 1, at + 16};
  }

  // Rows are counted over the whole sequence.
  [[nodiscard]] AttentionRow row(const AttentionWork& work, std::int64_t index) const {
    const auto* query_start = params_.query_start.ptr<const std::int32_t>() + work.sequence;
    const std::int64_t query = index / group_size_;
    const std::int64_t num_queries = query_start[1] - query_start[0];
    return {.token = query_start[0] + query,
            .position = params_.context_lens.ptr<const std::int32_t>()[work.sequence] - num_queries + query,
            .query_head = work.kv_head * group_size_ + index % group_size_};
  }
  // The next row of the work, without another division.
  void advance(const AttentionWork& work, AttentionRow& row) const {
    if (++row.query_head == (work.kv_head + 1) * group_size_) {
      row.query_head -= group_size_;
      ++row.token;
      ++row.position;
    }
  }

  // The spans that the row sees, [begin, end), at absolute positions.
  [[nodiscard]] KeyRange spans(const AttentionRow& row) const {
    return {first_seen(row.position, params_.window) / kSpan, row.position / kSpan + 1};
  }
  // The keys of the span that the row sees, counted from the span's first; empty if it sees none.
  [[nodiscard]] KeyRange keys(const AttentionRow& row, std::int64_t span) const {
    const std::int64_t first_key = span * kSpan;
    return {std::clamp<std::int64_t>(first_seen(row.position, params_.window) - first_key, 0, kSpan),
            std::clamp<std::int64_t>(row.position + 1 - first_key, 0, kSpan)};
  }
  // Those that any row of the work sees. REQUIRES: some row sees some.
  [[nodiscard]] KeyRange keys_of_work(const AttentionWork& work, std::int64_t span) const {
    return {keys(row(work, work.row_begin), span).begin, keys(row(work, work.row_end - 1), span).end};
  }

  [[nodiscard]] const A* query(const AttentionRow& row) const {
    return params_.q.row<const A>(row.token) + row.query_head * head_dim();
  }
  [[nodiscard]] A* output(const AttentionRow& row) const {
    return params_.out.row<A>(row.token) + row.query_head * head_dim();
  }

  // Where tiles [begin, end) of the span lie in the cache. REQUIRES: a tiled cache; each tile has a key that is seen.
  void locate_tiles(const AttentionWork& work, std::int64_t span, KeyRange tiles, SpanTiles<A>& found) const {
    const auto* blocks = params_.block_tables.row<const std::int32_t>(work.sequence);
    const std::int64_t per_block = cache_.block_size() / kKeyTile;
    const std::int64_t first = span * kTilesPerSpan + tiles.begin;
    std::int64_t block = first / per_block;
    std::int64_t in_block = first - block * per_block;
    for (std::int64_t tile = tiles.begin; tile < tiles.end;) {
      const A* keys = cache_.keys(blocks[block], work.kv_head);
      const A* values = cache_.values(blocks[block], work.kv_head);
      for (; in_block < per_block && tile < tiles.end; ++in_block, ++tile) {
        found.keys[tile] = keys + in_block * kKeyTile * head_dim();
        found.values[tile] = values + in_block * kKeyTile * head_dim();
      }
      in_block = 0;
      ++block;
    }
  }

  // The key and the value at a slot of the sequence's block number `block`, D elements each. REQUIRES: a cache that is
  // not tiled.
  void locate_row(const AttentionWork& work, std::int64_t block, std::int64_t slot, const A*& key,
                  const A*& value) const {
    const std::int64_t id = params_.block_tables.row<const std::int32_t>(work.sequence)[block];
    key = cache_.keys(id, work.kv_head) + slot * head_dim();
    value = cache_.values(id, work.kv_head) + slot * head_dim();
  }

 private:
  const PagedAttentionParams& params_;
  KVLayout<A> cache_;
  std::int64_t group_size_;
};

}  // namespace fastpaged::cpu
