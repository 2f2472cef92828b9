// How the AVX-512 paged attention is cut into tiles of work, and where each finds its data. No arithmetic.
//
// A row is one (query, query head); rows of a sequence that share a KV head are numbered query by query, so that their
// positions never decrease. A work item is up to kRowsPerWork rows of one sequence and KV head. Where there are few
// items with long contexts, their spans of keys become tiles of their own.
#pragma once

#include <cstdint>
#include <span>

#include "fastpaged/ops/kv_layout.h"
#include "fastpaged/ops/params.h"
#include "fastpaged/ops/workspace.h"

namespace fastpaged::cpu {

constexpr std::int64_t kSpan = 256;        // keys, at absolute positions [0, 256), [256, 512), ...
constexpr std::int64_t kRowsPerWork = 48;  // share the keys read and transposed

struct AttentionWork {
  std::int64_t sequence;
  std::int64_t kv_head;
  std::int64_t row_begin;
  std::int64_t row_end;
  std::int64_t num_spans;      // that the last row sees
  std::int64_t partials = -1;  // spans apart: offset of their partials [span][row]; else -1
};

struct AttentionTile {
  std::int64_t work;
  std::int64_t span;  // of a work item with spans apart
};

// Lies in a workspace.
struct AttentionPlan {
  std::span<AttentionWork> works;
  std::span<AttentionTile> tiles;
  std::span<std::int64_t> joins;  // works with spans apart
  float* partials = nullptr;      // theirs, uninitialised
};

// partial_size: floats of one row's partial. The plan is valid until the workspace is used again.
AttentionPlan plan_attention(const PagedAttentionParams& params, std::int64_t partial_size, Workspace& workspace);

// What one row knows after one or more spans: out = mix / sum, both relative to e^largest.
struct Partial {
  float* largest;
  float* sum;
  float* mix;  // [D]
};

constexpr std::int64_t partial_size_of(std::int64_t head_dim) {  // floats; mix begins with the second 64 bytes
  return head_dim + 16;
}

class AttentionProblem {
 public:
  explicit AttentionProblem(const PagedAttentionParams& params)  // REQUIRES: valid params; they outlive this
      : params_(params), cache_(params.kv_cache), group_size_(params.q.shape[1] / cache_.num_kv_heads) {}

  [[nodiscard]] const KVLayout<BFloat16>& cache() const { return cache_; }
  [[nodiscard]] float scale() const { return params_.scale; }
  [[nodiscard]] std::int64_t head_dim() const { return params_.q.shape[2]; }

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
  [[nodiscard]] const BFloat16* query(const AttentionWork& work, std::int64_t row) const {
    return params_.q.row<const BFloat16>(token(work, row)) + head(work, row) * head_dim();
  }
  [[nodiscard]] BFloat16* output(const AttentionWork& work, std::int64_t row) const {
    return params_.out.row<BFloat16>(token(work, row)) + head(work, row) * head_dim();
  }

  // key_at[j] = the key at position first_key + j, for j in [0, num_keys).
  void locate_keys(const AttentionWork& work, std::int64_t first_key, std::int64_t num_keys,
                   const BFloat16** key_at) const;

 private:
  [[nodiscard]] std::int64_t token(const AttentionWork& work, std::int64_t row) const {
    return params_.query_start.ptr<const std::int32_t>()[work.sequence] + row / group_size_;
  }
  [[nodiscard]] std::int64_t head(const AttentionWork& work, std::int64_t row) const {
    return work.kv_head * group_size_ + row % group_size_;
  }

  const PagedAttentionParams& params_;
  KVLayout<BFloat16> cache_;
  std::int64_t group_size_;
};

}  // namespace fastpaged::cpu
