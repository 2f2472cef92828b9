// SpanAttention: the rows of one work item over one span, at an absolute position: scores, softmax, mix.
//
// Tiles are taken in strips that all rows go over; each strip has fetched from memory what comes some tiles later:
// keys, then values, then the keys of the next span. All this only moves data.
#pragma once

#include <algorithm>
#include <memory>

#include "fastpaged/ops/cpu/attention_codes.h"
#include "fastpaged/ops/cpu/attention_problem.h"
#include "fastpaged/ops/cpu/attention_scores.h"
#include "fastpaged/ops/cpu/attention_softmax.h"
#include "fastpaged/ops/cpu/attention_tiles.h"
#include "fastpaged/ops/cpu/attention_values.h"
#include "fastpaged/ops/cpu/tile_fetcher.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {
namespace {

constexpr std::int64_t kMaxPartialSize = partial_size_of(kMaxHeadDim);
// Of keys, as many as the fastest cache holds beside the rest. Of values as many, so that few rows wait for memory as
// little as can be; many rows take all at once, for their sums come and go with each strip.
constexpr std::int64_t kStripTiles = 4;
constexpr std::int64_t kFewRows = 16;
constexpr std::int64_t kSoftRows = 6;  // whose scores the fastest cache holds
// Rows that are taken together all along: as they read a line, the loops themselves fetch another.
constexpr std::int64_t kRowsThatFetch = std::min(kScoreRows, kMixRows);

// One thread's working memory.
template <typename A>
struct AttentionScratch {
  alignas(64) float scores[kRowsPerWork][kSpan];
  alignas(64) Weight<A> weights[kRowsPerWork][kSpan];
  const A* queries[kRowsPerWork];
  KeyRange seen[kRowsPerWork];
  SpanTiles<A> tiles;
  TileFetcher<A> fetcher;
  SpanTiles<std::uint8_t> codes;
  TileFetcher<std::uint8_t> code_fetcher;
  // Partials of the rows of one work item: of all spans so far, and of the next one.
  alignas(64) float total[kRowsPerWork * kMaxPartialSize];
  alignas(64) float next[kRowsPerWork * kMaxPartialSize];
  GatheredTiles<A> gathered;  // or widened, of codes
  WidenedRows<A> rows;
};

template <typename A>
AttentionScratch<A>& thread_scratch() {
  thread_local const std::unique_ptr<AttentionScratch<A>> scratch = std::make_unique<AttentionScratch<A>>();
  return *scratch;
}

template <typename A, bool kFetches>
constexpr decltype(&score_rows<A, 1, kFetches>) kScoreTable[] = {nullptr,
                                                                 &score_rows<A, 1, kFetches>,
                                                                 &score_rows<A, 2, kFetches>,
                                                                 &score_rows<A, 3, kFetches>,
                                                                 &score_rows<A, 4, kFetches>,
                                                                 &score_rows<A, 5, kFetches>,
                                                                 &score_rows<A, 6, kFetches>};
template <typename A, bool kFetches>
constexpr decltype(&mix_rows<A, 1, kFetches>) kMixTable[] = {nullptr,
                                                             &mix_rows<A, 1, kFetches>,
                                                             &mix_rows<A, 2, kFetches>,
                                                             &mix_rows<A, 3, kFetches>,
                                                             &mix_rows<A, 4, kFetches>,
                                                             &mix_rows<A, 5, kFetches>,
                                                             &mix_rows<A, 6, kFetches>};

template <typename A>
class SpanAttention {
 public:
  using Element = A;
  struct Registers {};  // none keep anything from span to span

  SpanAttention(const AttentionProblem<A>& problem, const AttentionWork& work, std::int64_t span)
      : problem_(problem), work_(work), span_(span), scratch_(thread_scratch<A>()) {
    AttentionRow at = problem.row(work, work.row_begin);
    std::int64_t token = -1;
    for (std::int64_t row = 0; row < work.row_end - work.row_begin; ++row, problem.advance(work, at)) {
      scratch_.seen[row] = at.token == token ? scratch_.seen[row - 1] : problem.keys(at, span);
      token = at.token;
      if (!scratch_.seen[row].empty()) {
        first_row_ = end_row_ == 0 ? row : first_row_;
        end_row_ = row + 1;
        scratch_.queries[row] = problem.query(at);
      }
    }
  }

  // Rows [first_row, end_row) of the work see keys of this span: neither do those before, whose queries stand before
  // the span, nor those after, whose windows begin after it.
  [[nodiscard]] std::int64_t first_row() const { return first_row_; }
  [[nodiscard]] std::int64_t end_row() const { return end_row_; }

  // partials: one per row of the work. Those of rows that see no key are left alone. next: what is run after this.
  void run(Registers& /*registers*/, float* partials, SpanPlace next) {
    const KeyRange tiles = find_tiles(next);
    loops_fetch_ = end_row_ - first_row_ <= kRowsThatFetch && problem_.order().is_tiled() && !problem_.has_codes();
    for_each_strip(tiles, kStripTiles, [&](KeyRange strip) {
      widen_key_tiles(strip);
      score_strip(strip);
    });
    for (std::int64_t row = first_row_; row < end_row_; row += kSoftRows) {
      soften_rows(partials, row, std::min(row + kSoftRows, end_row_));
    }
    for_each_strip(tiles, end_row_ - first_row_ <= kFewRows ? kStripTiles : kTilesPerSpan, [&](KeyRange strip) {
      widen_value_tiles(strip);
      mix_strip(partials, strip);
    });
  }

 protected:
  KeyRange find_tiles(SpanPlace next) {
    const KeyRange keys = problem_.keys_of_work(work_, span_);
    const KeyRange tiles = tiles_of(keys);
    if (problem_.has_codes()) {
      find_codes(next, keys);
    } else if (problem_.order().is_tiled()) {
      problem_.locate_tiles(work_, span_, tiles, scratch_.tiles);
      scratch_.fetcher.begin_span(problem_, {&work_, span_}, tiles, next, scratch_.tiles);
    } else {
      gather_tiles(problem_, work_, span_, keys, scratch_.gathered, scratch_.tiles);
    }
    return tiles;
  }

  // Tiles of codes are widened strip by strip, into the same room, so that it stays in the fastest cache.
  void find_codes(SpanPlace next, KeyRange keys) {
    if (problem_.order().is_tiled()) {
      problem_.locate_tiles(work_, span_, tiles_of(keys), scratch_.codes);
      scratch_.code_fetcher.begin_span(problem_, {&work_, span_}, tiles_of(keys), next, scratch_.codes);
    } else {
      gather_code_tiles(problem_, work_, span_, keys, scratch_.rows, scratch_.gathered, scratch_.tiles);
    }
  }
  [[nodiscard]] bool widens_tiles() const { return problem_.has_codes() && problem_.order().is_tiled(); }
  void widen_key_tiles(KeyRange strip) {
    A* to = scratch_.gathered.keys;
    for (std::int64_t tile = strip.begin; widens_tiles() && tile < strip.end; ++tile) {
      scratch_.tiles.keys[tile] = to;
      code_wideners<A>(problem_.codes().dtype())
          .keys(scratch_.codes.keys[tile], scratch_.codes.after_keys[tile], problem_.head_dim(), to);
      to += kKeyTile * problem_.head_dim();
    }
  }
  void widen_value_tiles(KeyRange strip) {
    A* to = scratch_.gathered.values;
    for (std::int64_t tile = strip.begin; widens_tiles() && tile < strip.end; ++tile) {
      scratch_.tiles.values[tile] = to;
      code_wideners<A>(problem_.codes().dtype())
          .values(scratch_.codes.values[tile], scratch_.codes.after_values[tile], problem_.head_dim(), to);
      to += kKeyTile * problem_.head_dim();
    }
  }

  template <typename Fn>
  void for_each_strip(KeyRange tiles, std::int64_t size, const Fn& fn) {
    for (std::int64_t tile = tiles.begin; tile < tiles.end; tile += size) {
      const KeyRange strip{tile, std::min(tiles.end, tile + size)};
      if (!loops_fetch_ && !problem_.has_codes()) {
        scratch_.fetcher.fetch(strip.end - strip.begin);
      }
      fn(strip);
    }
  }

  [[nodiscard]] ScoreRule rule_of(const AttentionRow& row) const {
    const PagedAttentionParams& params = problem_.params();
    const auto* slopes = params.alibi_slopes.ptr<const float>();
    return {.scale = params.scale,
            .soft_cap = params.soft_cap,
            .slope = slopes == nullptr ? 0.0F : slopes[row.query_head],
            .first_distance = static_cast<float>(span_ * kSpan - row.position)};
  }

 private:
  // One half after the other, so that no row waits for its own largest score.
  void soften_rows(float* partials, std::int64_t begin, std::int64_t end) {
    ScoreRule rules[kSoftRows];
    AttentionRow at = problem_.row(work_, work_.row_begin + begin);
    for (std::int64_t row = begin; row < end; ++row, problem_.advance(work_, at)) {
      rules[row - begin] = rule_of(at);
      find_largest(scratch_.scores[row], scratch_.seen[row], rules[row - begin], problem_.partial(partials, row));
    }
    for (std::int64_t row = begin; row < end; ++row) {
      const Partial partial = problem_.partial(partials, row);
      soften(scratch_.scores[row], scratch_.seen[row], rules[row - begin], scratch_.weights[row], partial);
      clear(partial.mix, problem_.head_dim());
    }
  }

  void score_strip(KeyRange strip) {
    for (std::int64_t row = first_row_; row < end_row_; row += kScoreRows) {
      const std::int64_t count = std::min<std::int64_t>(kScoreRows, end_row_ - row);
      const KeyRange tiles = tiles_of({scratch_.seen[row].begin, scratch_.seen[row + count - 1].end});
      (loops_fetch_ ? kScoreTable<A, true> : kScoreTable<A, false>)[count](
          scratch_.queries + row, scratch_.tiles, problem_.head_dim(),
          std::max(strip.begin, tiles.begin) * kColumnsPerTile, std::min(strip.end, tiles.end) * kColumnsPerTile,
          scratch_.scores[row]);
    }
  }

  void mix_strip(float* partials, KeyRange strip) {
    for (std::int64_t row = first_row_; row < end_row_; row += kMixRows) {
      mix_block(partials, row, std::min<std::int64_t>(kMixRows, end_row_ - row),
                {strip.begin * kKeyTile, strip.end * kKeyTile});
    }
  }

  // The steps whose keys, all of them, lie in `among` and are seen by the row.
  [[nodiscard]] KeyRange whole_steps(std::int64_t row, KeyRange among) const {
    const KeyRange seen = scratch_.seen[row];
    return {(std::max(seen.begin, among.begin) + kStep<A> - 1) / kStep<A>, std::min(seen.end, among.end) / kStep<A>};
  }

  // Together over the steps that all rows see, each by itself over those before and after.
  void mix_block(float* partials, std::int64_t row, std::int64_t count, KeyRange among) {
    if (scratch_.seen[row + count - 1].begin <= among.begin && scratch_.seen[row].end >= among.end) {
      return mix(partials, row, count, {among.begin / kStep<A>, among.end / kStep<A>});
    }
    KeyRange common{whole_steps(row + count - 1, among).begin, whole_steps(row, among).end};
    if (common.empty()) {
      common = {among.end / kStep<A>, among.end / kStep<A>};
    }
    for (std::int64_t r = row; r < row + count; ++r) {
      const KeyRange steps = whole_steps(r, among);
      if (scratch_.seen[r].begin % kStep<A> != 0) {
        mix_one(partials, r, scratch_.seen[r].begin, among);
      }
      mix(partials, r, 1, {steps.begin, std::min(steps.end, common.begin)});
    }
    mix(partials, row, count, common);
    for (std::int64_t r = row; r < row + count; ++r) {
      const KeyRange steps = whole_steps(r, among);
      mix(partials, r, 1, {std::max(steps.begin, common.end), steps.end});
      if (scratch_.seen[r].end % kStep<A> != 0) {
        mix_one(partials, r, scratch_.seen[r].end - 1, among);
      }
    }
  }

  void mix(float* partials, std::int64_t row, std::int64_t count, KeyRange steps) {
    if (!steps.empty()) {
      (loops_fetch_ ? kMixTable<A, true> : kMixTable<A, false>)[count](
          scratch_.tiles, steps, problem_.head_dim(), scratch_.weights[row], problem_.partial(partials, row).mix,
          problem_.partial_size(), 0);
    }
  }

  void mix_one(float* partials, std::int64_t row, std::int64_t key, KeyRange among) {
    if (key >= among.begin && key < among.end) {
      mix_key<A>(scratch_.tiles, key, problem_.head_dim(), scratch_.weights[row], problem_.partial(partials, row).mix);
    }
  }

 protected:
  const AttentionProblem<A>& problem_;
  const AttentionWork& work_;
  std::int64_t span_;
  std::int64_t first_row_ = 0;
  std::int64_t end_row_ = 0;
  bool loops_fetch_ = false;
  AttentionScratch<A>& scratch_;
};

}  // namespace
}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
