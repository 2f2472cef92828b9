// Paged attention on AMX tiles, in bfloat16: AmxSpanAttention does the two products of a span with tiles, and the rest
// as SpanAttention does. Tiles of the cache are B operands as they lie (kv_layout.h):
//
//   scores  [rows][keys] = queries [rows][D] times K, 32 elements of D by 16 keys a tile, D filled up with zeros
//   mix     [rows][D] = weights [rows][keys] times V, 32 keys at an absolute position by 16 elements a tile
//
// One depth for every number of rows, so that a row has the same bits alone, in decode, as in a prompt.
//
// What bounds it, per tile of K or V (1 KiB), after the rates of Intel's manual: a product of 16 rows takes 16 cycles,
// a load 8, a store of sums 16; a sum is ready for the next product after 52, hence four of them under way at a time.
//   decode   one product, 16 cycles, fewer with few rows. Memory gives a core 5 to 10 bytes a cycle: 100 to 200 cycles.
//            So decode waits for memory, whatever the group, if it is never idle: the fetcher runs some tiles ahead.
//   prompt   48 rows share a tile: 3 products, 48 cycles, and 26 of loads beside them (4 loads for 4 products of two
//            tiles of rows, 5 for 4 of one). For 16 keys with D = 64 that is 4 tiles, 192 cycles; but also 48 vectors
//            of exponentials, some 8 cycles each. Those bound it; from D = 128 on, products do.
// Values that are copied into tiles cost a load and a store of each 64 bytes, 16 cycles per tile, once for all rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "fastpaged/ops/cpu/amx_products.h"
#include "fastpaged/ops/cpu/amx_values.h"
#include "fastpaged/ops/cpu/attention_run.h"
#include "fastpaged/ops/cpu/attention_span.h"
#include "fastpaged/ops/cpu/vector_ops.h"
#include "fastpaged/ops/params.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu::avx512 {
namespace {

// One thread's working memory. Rows are counted from the first that sees the span; room for those that fill up tiles.
struct AmxAttentionScratch {
  static constexpr std::int64_t kMaxRows = kRowsPerWork + kTileRows;

  alignas(64) BFloat16 queries[kMaxRows * kMaxHeadDim];
  alignas(64) float scores[kMaxRows * kSpan];
  alignas(64) BFloat16 weights[kMaxRows * kSpan];
  alignas(64) float mix[kMaxRows * kMaxHeadDim];
  alignas(64) BFloat16 key_rests[kTilesPerSpan][kAmxDepth * kKeyTile];  // where D ends within a tile
  AmxValues values;
};

AmxAttentionScratch& amx_thread_scratch() {
  thread_local const std::unique_ptr<AmxAttentionScratch> scratch = std::make_unique<AmxAttentionScratch>();
  return *scratch;
}

template <typename Tiles>
class AmxSpanAttention : private SpanAttention<BFloat16> {
  using Base = SpanAttention<BFloat16>;

 public:
  using Base::Element;
  using Base::end_row;
  using Base::first_row;
  using Base::SpanAttention;
  using Registers = AmxRegisters<Tiles>;

  void run(Registers& registers, float* partials, SpanPlace next) {
    const KeyRange tiles = find_tiles(next);
    gather_queries();
    for_each_strip(tiles, kStripTiles, [&](KeyRange strip) {
      widen_key_tiles(strip);
      score(registers, strip);
    });
    widen_value_tiles(tiles);
    const KeyRange groups = groups_of(seen_by(first_row(), end_row()));
    AttentionRow at = problem_.row(work_, work_.row_begin + first_row());
    for (std::int64_t row = first_row(); row < end_row(); ++row, problem_.advance(work_, at)) {
      weigh_row(row, rule_of(at), groups, problem_.partial(partials, row));
    }
    mix(registers, partials, first_row(), end_row());
  }

 private:
  [[nodiscard]] std::int64_t head_dim() const { return problem_.head_dim(); }
  [[nodiscard]] std::int64_t num_steps() const { return (head_dim() + kAmxDepth - 1) / kAmxDepth; }
  [[nodiscard]] KeyRange seen_by(std::int64_t row, std::int64_t end) const {
    return {scratch_.seen[row].begin, scratch_.seen[end - 1].end};
  }

  void gather_queries() {
    const std::int64_t stride = num_steps() * kAmxDepth;
    for (std::int64_t row = first_row(); row < end_row(); ++row) {
      BFloat16* const to = amx_.queries + (row - first_row()) * stride;
      std::fill(std::copy_n(scratch_.queries[row], head_dim(), to), to + stride, BFloat16{});
    }
  }

  void score(Registers& registers, KeyRange tiles) {
    const SpanTiles<BFloat16>& found = scratch_.tiles;
    const std::int64_t whole_steps = head_dim() / kAmxDepth;
    for (std::int64_t tile = tiles.begin; whole_steps < num_steps() && tile < tiles.end; ++tile) {
      // What follows the last elements in memory are other keys, or nothing.
      std::memcpy(amx_.key_rests[tile], found.keys[tile] + whole_steps * kAmxDepth * kKeyTile,
                  static_cast<std::size_t>(head_dim() % kAmxDepth * kKeyTile) * sizeof(BFloat16));
    }
    const auto find = [&](std::int64_t step, std::int64_t tile) {
      return step < whole_steps ? found.keys[tile] + step * kAmxDepth * kKeyTile : amx_.key_rests[tile];
    };
    const AmxRows rows = AmxRows::of(end_row() - first_row());
    amx_multiply_rows(registers.of_height(rows.height), rows, {amx_.queries, num_steps() * kAmxDepth}, {0, num_steps()},
                      find, kTileRowBytes, {amx_.scores, kSpan}, tiles.begin, tiles.end);
  }

  // groups: those that any row sees.
  void weigh_row(std::int64_t row, const ScoreRule& rule, KeyRange groups, Partial partial) {
    const std::int64_t index = row - first_row();
    const KeyRange seen = scratch_.seen[row];
    BFloat16* const weights = amx_.weights + index * kSpan;
    find_largest(amx_.scores + index * kSpan, seen, rule, partial);
    soften(amx_.scores + index * kSpan, seen, rule, weights, partial);
    clear_weights(weights, {groups.begin, groups_of(seen).begin});
    clear_weights(weights, {groups_of(seen).end, groups.end});
  }

  void mix(Registers& registers, float* partials, std::int64_t row, std::int64_t end) {
    const KeyRange seen = seen_by(row, end);
    const KeyRange common{scratch_.seen[end - 1].begin, scratch_.seen[row].end};
    if (!amx_.values.place(scratch_.tiles, head_dim(), seen, common, scratch_.fetcher)) {
      return mix_by_position(registers, partials, row, end);
    }
    const AmxRows rows = AmxRows::of(end - row);
    const auto find = [&](std::int64_t group, std::int64_t column) {
      return amx_.values.group(group) + column * 2 * kLanes;
    };
    const KeyRange groups = groups_of(seen);
    amx_multiply_rows(registers.of_height(rows.height), rows, {amx_.weights + (row - first_row()) * kSpan, kSpan},
                      {groups.begin, groups.end}, find, head_dim() * 2 * static_cast<std::int64_t>(sizeof(BFloat16)),
                      {amx_.mix, head_dim()}, 0, head_dim() / kLanes);
    for (std::int64_t i = row; i < end; ++i) {
      copy_sums(amx_.mix + (i - row) * head_dim(), head_dim(), problem_.partial(partials, i).mix);
    }
  }

  // Rows of one position see the same keys.
  void mix_by_position(Registers& registers, float* partials, std::int64_t row, std::int64_t end) {
    const auto* seen = scratch_.seen;
    while (row < end) {
      const std::int64_t first = row;
      while (row < end && seen[row].begin == seen[first].begin && seen[row].end == seen[first].end) {
        ++row;
      }
      mix(registers, partials, first, row);
    }
  }

  AmxAttentionScratch& amx_ = amx_thread_scratch();
};

// Float32 has no tiles.
template <typename Tiles>
void amx_paged_attention(const PagedAttentionParams& params, ThreadPool& pool) {
  if (params.q.dtype != DType::kBFloat16) {
    return paged_attention(params, pool);
  }
  validate(params);
  attend_all<AmxSpanAttention<Tiles>>(params, pool);
}

}  // namespace
}  // namespace fastpaged::cpu::avx512
