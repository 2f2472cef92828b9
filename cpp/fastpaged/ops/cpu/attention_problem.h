// AttentionProblem: where the rows of a work item find their queries, keys and outputs. No arithmetic.
// A: the activation dtype, BFloat16 or float.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

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
// one is read, line by line, the other is fetched from memory. T: A, or std::uint8_t for runs of codes.
template <typename T>
struct SpanTiles {
  const T* keys[kTilesPerSpan];
  const T* values[kTilesPerSpan];
  const T* after_keys[kTilesPerSpan];
  const T* after_values[kTilesPerSpan];
};

// A key and a value of a cache of codes that is not tiled.
struct CodeRow {
  const std::uint8_t* key;
  const std::uint8_t* value;
  float key_scale;
  float value_scale;
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
      : params_(params),
        cache_(params.kv_cache),
        codes_(params.kv_cache),
        has_codes_(is_kv_code(params.kv_cache.dtype)),
        group_size_(params.q.shape[1] / cache_.num_kv_heads()) {}

  [[nodiscard]] const PagedAttentionParams& params() const { return params_; }
  [[nodiscard]] const KVOrder<A>& order() const { return cache_; }
  [[nodiscard]] bool has_codes() const { return has_codes_; }
  [[nodiscard]] const KVCodeLayout<A>& codes() const { return codes_; }  // REQUIRES: has_codes
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

  // Of T: see SpanTiles.
  template <typename T>
  [[nodiscard]] std::int64_t tile_size() const {
    return std::is_same_v<T, A> ? kKeyTile * head_dim() : codes_.run_bytes();
  }

  // Where tiles [begin, end) of the span lie in the cache. REQUIRES: a tiled cache, of T; each tile has a key that is
  // seen.
  template <typename T>
  void locate_tiles(const AttentionWork& work, std::int64_t span, KeyRange tiles, SpanTiles<T>& found) const {
    const auto* blocks = params_.block_tables.row<const std::int32_t>(work.sequence);
    const std::int64_t per_block = cache_.block_size() / kKeyTile;
    const std::int64_t size = tile_size<T>();
    const std::int64_t first = span * kTilesPerSpan + tiles.begin;
    std::int64_t block = first / per_block;
    std::int64_t in_block = first - block * per_block;
    for (std::int64_t tile = tiles.begin; tile < tiles.end;) {
      const T* keys = layout<T>().keys(blocks[block], work.kv_head);
      const T* values = layout<T>().values(blocks[block], work.kv_head);
      for (; in_block < per_block && tile < tiles.end; ++in_block, ++tile) {
        found.keys[tile] = keys + in_block * size;
        found.values[tile] = values + in_block * size;
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
  // The same of codes.
  [[nodiscard]] CodeRow locate_codes(const AttentionWork& work, std::int64_t block, std::int64_t slot) const {
    const std::int64_t id = params_.block_tables.row<const std::int32_t>(work.sequence)[block];
    const std::uint8_t* const keys = codes_.keys(id, work.kv_head);
    const std::uint8_t* const values = codes_.values(id, work.kv_head);
    return {.key = keys + codes_.key_code(slot, 0),
            .value = values + codes_.value_code(slot, 0),
            .key_scale = *reinterpret_cast<const float*>(keys + codes_.scale(slot)),
            .value_scale = *reinterpret_cast<const float*>(values + codes_.scale(slot))};
  }

 private:
  template <typename T>
  [[nodiscard]] const auto& layout() const {
    if constexpr (std::is_same_v<T, A>) {
      return cache_;
    } else {
      return codes_;
    }
  }

  const PagedAttentionParams& params_;
  KVLayout<A> cache_;      // of A,
  KVCodeLayout<A> codes_;  // or of codes
  bool has_codes_;
  std::int64_t group_size_;
};

}  // namespace fastpaged::cpu
