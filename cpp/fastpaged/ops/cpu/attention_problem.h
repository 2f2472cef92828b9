// AttentionProblem: where the rows of a work item find their queries, keys and outputs. No arithmetic.
// A: the activation dtype, BFloat16 or float.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fastpaged/ops/cpu/attention_work.h"
#include "fastpaged/ops/kv_layout.h"
#include "fastpaged/ops/params.h"

namespace fastpaged::cpu {

struct KeyRange {
  std::int64_t begin;
  std::int64_t end;
  [[nodiscard]] bool empty() const { return begin >= end; }
};

// What one row knows after one or more spans: out = mix / sum, both relative to e^largest.
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
      : params_(params), cache_(params.kv_cache), group_size_(params.q.shape[1] / cache_.num_kv_heads) {}

  [[nodiscard]] const PagedAttentionParams& params() const { return params_; }
  [[nodiscard]] std::int64_t head_dim() const { return params_.q.shape[2]; }
  [[nodiscard]] std::int64_t value_offset() const { return cache_.value_offset; }  // from a key to its value

  [[nodiscard]] std::int64_t partial_size() const { return partial_size_of(head_dim()); }
  [[nodiscard]] Partial partial(float* partials, std::int64_t row) const {
    float* at = partials + row * partial_size();
    return {at, at + 1, at + 16};
  }

  // Rows are counted over the whole sequence here.
  [[nodiscard]] std::int64_t position(const AttentionWork& work, std::int64_t row) const {
    const auto* query_start = params_.query_start.ptr<const std::int32_t>() + work.sequence;
    const std::int64_t num_queries = query_start[1] - query_start[0];
    return params_.context_lens.ptr<const std::int32_t>()[work.sequence] - num_queries + row / group_size_;
  }
  // The spans that the row sees, [begin, end), at absolute positions.
  [[nodiscard]] KeyRange spans(const AttentionWork& work, std::int64_t row) const {
    const std::int64_t at = position(work, row);
    return {first_seen(at, params_.window) / kSpan, at / kSpan + 1};
  }
  // The keys of the span that the row sees, counted from the span's first; empty if it sees none.
  [[nodiscard]] KeyRange keys(const AttentionWork& work, std::int64_t row, std::int64_t span) const {
    const std::int64_t at = position(work, row);
    const std::int64_t first_key = span * kSpan;
    return {std::clamp<std::int64_t>(first_seen(at, params_.window) - first_key, 0, kSpan),
            std::clamp<std::int64_t>(at + 1 - first_key, 0, kSpan)};
  }

  [[nodiscard]] std::int64_t query_head(const AttentionWork& work, std::int64_t row) const {
    return work.kv_head * group_size_ + row % group_size_;
  }
  [[nodiscard]] const A* query(const AttentionWork& work, std::int64_t row) const {
    return params_.q.row<const A>(token(work, row)) + query_head(work, row) * head_dim();
  }
  [[nodiscard]] A* output(const AttentionWork& work, std::int64_t row) const {
    return params_.out.row<A>(token(work, row)) + query_head(work, row) * head_dim();
  }

  // key_at[j] = the key at position positions.begin + j.
  void locate_keys(const AttentionWork& work, KeyRange positions, const A** key_at) const {
    const auto* blocks = params_.block_tables.row<const std::int32_t>(work.sequence);
    for (std::int64_t position = positions.begin; position < positions.end;) {
      const std::int64_t block = position / cache_.block_size;
      const std::int64_t block_end = std::min(positions.end, (block + 1) * cache_.block_size);
      const A* key = cache_.key(blocks[block], work.kv_head, position % cache_.block_size);
      for (; position < block_end; ++position, key += cache_.token_stride) {
        *key_at++ = key;
      }
    }
  }

 private:
  [[nodiscard]] std::int64_t token(const AttentionWork& work, std::int64_t row) const {
    return params_.query_start.ptr<const std::int32_t>()[work.sequence] + row / group_size_;
  }

  const PagedAttentionParams& params_;
  KVLayout<A> cache_;
  std::int64_t group_size_;
};

}  // namespace fastpaged::cpu
