// How paged attention is cut into tiles of work. No arithmetic.
//
// A row is one (query, query head); rows of a sequence that share a KV head are numbered query by query, so that their
// positions never decrease. A work item is up to kRowsPerWork rows of one sequence and KV head, and the spans of keys
// that any of them sees. Where there are few items with long contexts, their spans become tiles of their own; small
// items that follow each other share a tile.
#pragma once

#include <cstdint>
#include <span>

#include "fastpaged/ops/params.h"
#include "fastpaged/ops/workspace.h"

namespace fastpaged::cpu {

constexpr std::int64_t kSpan = 256;        // keys, at absolute positions [0, 256), [256, 512), ...
constexpr std::int64_t kRowsPerWork = 48;  // share the keys that are read

struct AttentionWork {
  std::int64_t sequence;
  std::int64_t kv_head;
  std::int64_t row_begin;
  std::int64_t row_end;
  std::int64_t first_span;       // that the first row sees: later than the first of all with a window
  std::int64_t num_spans;        // up to the last that the last row sees
  std::int64_t partials = -1;    // spans apart: offset of their partials [span][row]; else -1
  std::int64_t num_pending = 0;  // spans apart that are not computed yet
};

struct AttentionTile {
  std::int64_t work;       // the first
  std::int64_t num_works;  // 1 with spans apart
  std::int64_t span;       // counted from first_span, of a work item with spans apart
};

// Lies in a workspace.
struct AttentionPlan {
  std::span<AttentionWork> works;
  std::span<AttentionTile> tiles;
  float* partials = nullptr;  // of works with spans apart, uninitialised
};

// The first position that the query at `position` sees.
constexpr std::int64_t first_seen(std::int64_t position, std::int32_t window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

// partial_size: floats of one row's partial. The plan is valid until the workspace is used again.
AttentionPlan plan_attention(const PagedAttentionParams& params, std::int64_t partial_size, Workspace& workspace);

}  // namespace fastpaged::cpu
