// Paged attention.
//
// The arithmetic of one (query, head) is fixed by its position, its keys and the params alone. Keys lie at absolute
// positions; each run of kSpan of them is a span, and gives a partial: the largest score, the sum of exponentials and
// the weighted sum of values, keys in order. Partials are joined in order of position, beginning with that of the first
// span the query sees. Who is computed beside whom, whether spans go to different threads, and the block size only move
// data.
//
// A query reads no key beyond its own position and none before its window: those slots may hold anything, NaN included.
#include <algorithm>
#include <memory>

#include "fastpaged/ops/cpu/attention_problem.h"
#include "fastpaged/ops/cpu/attention_scores.h"
#include "fastpaged/ops/cpu/attention_values.h"
#include "fastpaged/ops/cpu/attention_work.h"
#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/vector_ops.h"
#include "fastpaged/ops/element.h"
#include "fastpaged/ops/validate.h"
#include "fastpaged/ops/workspace.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {
namespace {

constexpr std::int64_t kMaxPartialSize = partial_size_of(kMaxHeadDim);

// One thread's working memory.
template <typename A>
struct Scratch {
  alignas(64) float keys[kSpan * kMaxHeadDim / kUnit<A>];  // of a span, transposed
  alignas(64) float scores[kRowsPerWork][kSpan];
  alignas(64) float queries[kScoreRows][kMaxHeadDim];
  alignas(64) A no_key[kMaxHeadDim];  // zeros, where the tiles of a span have keys that nobody sees
  const A* key_at[kSpan];
  KeyRange seen[kRowsPerWork];
  // Partials of the rows of one work item: of all spans so far, and of the next one.
  alignas(64) float total[kRowsPerWork * kMaxPartialSize];
  alignas(64) float next[kRowsPerWork * kMaxPartialSize];
};

template <typename A>
Scratch<A>& thread_scratch() {
  thread_local const std::unique_ptr<Scratch<A>> scratch = std::make_unique<Scratch<A>>();
  return *scratch;
}

template <typename A>
constexpr decltype(&score_rows<A, 1>) kScoreTable[] = {nullptr, &score_rows<A, 1>, &score_rows<A, 2>, &score_rows<A, 3>,
                                                       &score_rows<A, 4>};
template <typename A>
constexpr decltype(&mix_rows<A, 1>) kMixTable[] = {nullptr,         &mix_rows<A, 1>, &mix_rows<A, 2>, &mix_rows<A, 3>,
                                                   &mix_rows<A, 4>, &mix_rows<A, 5>, &mix_rows<A, 6>};

// The rows of one work item over one span, at an absolute position.
template <typename A>
class SpanAttention {
 public:
  SpanAttention(const AttentionProblem<A>& problem, const AttentionWork& work, std::int64_t span)
      : problem_(problem), work_(work), span_(span), scratch_(thread_scratch<A>()) {
    for (std::int64_t row = 0; row < work.row_end - work.row_begin; ++row) {
      scratch_.seen[row] = problem.keys(work, work.row_begin + row, span);
      if (!scratch_.seen[row].empty()) {
        first_row_ = end_row_ == 0 ? row : first_row_;
        end_row_ = row + 1;
      }
    }
  }

  // Rows [first_row, end_row) of the work see keys of this span: neither do those before, whose queries stand before
  // the span, nor those after, whose windows begin after it.
  [[nodiscard]] std::int64_t first_row() const { return first_row_; }
  [[nodiscard]] std::int64_t end_row() const { return end_row_; }

  // partials: one per row of the work. Those of rows that see no key are left alone.
  void run(float* partials) {
    gather_keys({scratch_.seen[first_row_].begin, scratch_.seen[end_row_ - 1].end});
    for (std::int64_t row = first_row_; row < end_row_; row += kScoreRows) {
      score_block(row, std::min<std::int64_t>(kScoreRows, end_row_ - row));
    }
    for (std::int64_t row = first_row_; row < end_row_; ++row) {
      const Partial partial = problem_.partial(partials, row);
      exponentials(scratch_.scores[row], scratch_.seen[row], rule_of(row), partial);
      clear(partial.mix, problem_.head_dim());
    }
    for (std::int64_t row = first_row_; row < end_row_; row += kMixRows) {
      mix_block(partials, row, std::min<std::int64_t>(kMixRows, end_row_ - row));
    }
  }

 private:
  // keys: that some row sees. The tiles they lie in are transposed whole.
  void gather_keys(KeyRange keys) {
    const KeyRange tiles = tiles_of(keys);
    std::fill(scratch_.key_at + tiles.begin * kKeyTile, scratch_.key_at + keys.begin, scratch_.no_key);
    problem_.locate_keys(work_, {span_ * kSpan + keys.begin, span_ * kSpan + keys.end}, scratch_.key_at + keys.begin);
    std::fill(scratch_.key_at + keys.end, scratch_.key_at + tiles.end * kKeyTile, scratch_.no_key);
    for (std::int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
      transpose_keys(scratch_.key_at + tile * kKeyTile, problem_.head_dim(),
                     scratch_.keys + tile * kKeyTile * (problem_.head_dim() / kUnit<A>));
    }
  }

  static KeyRange tiles_of(KeyRange keys) { return {keys.begin / kKeyTile, (keys.end + kKeyTile - 1) / kKeyTile}; }

  void score_block(std::int64_t row, std::int64_t count) {
    for (std::int64_t r = 0; r < count; ++r) {
      spread_query(problem_.query(work_, work_.row_begin + row + r), problem_.head_dim(), scratch_.queries[r]);
    }
    const KeyRange tiles = tiles_of({scratch_.seen[row].begin, scratch_.seen[row + count - 1].end});
    kScoreTable<A>[count](scratch_.queries, scratch_.keys, problem_.head_dim() / kUnit<A>, tiles.begin, tiles.end,
                          scratch_.scores[row]);
  }

  [[nodiscard]] ScoreRule rule_of(std::int64_t row) const {
    const PagedAttentionParams& params = problem_.params();
    const std::int64_t of_sequence = work_.row_begin + row;
    const auto* slopes = params.alibi_slopes.ptr<const float>();
    return {.scale = params.scale,
            .soft_cap = params.soft_cap,
            .slope = slopes == nullptr ? 0.0F : slopes[problem_.query_head(work_, of_sequence)],
            .first_distance = static_cast<float>(span_ * kSpan - problem_.position(work_, of_sequence))};
  }

  // Together over the keys that all rows see, each by itself over those before and after.
  void mix_block(float* partials, std::int64_t row, std::int64_t count) {
    KeyRange common{scratch_.seen[row + count - 1].begin, scratch_.seen[row].end};
    if (common.empty()) {
      common = {kSpan, kSpan};
    }
    for (std::int64_t r = row; r < row + count; ++r) {
      mix(partials, r, 1, {scratch_.seen[r].begin, std::min(scratch_.seen[r].end, common.begin)});
    }
    mix(partials, row, count, common);
    for (std::int64_t r = row; r < row + count; ++r) {
      mix(partials, r, 1, {common.end, scratch_.seen[r].end});
    }
  }

  void mix(float* partials, std::int64_t row, std::int64_t count, KeyRange keys) {
    if (!keys.empty()) {
      const Values<A> values{scratch_.key_at, problem_.value_offset(), problem_.head_dim()};
      kMixTable<A>[count](values, keys, scratch_.scores[row], problem_.partial(partials, row).mix,
                          problem_.partial_size(), 0);
    }
  }

  const AttentionProblem<A>& problem_;
  const AttentionWork& work_;
  std::int64_t span_;
  std::int64_t first_row_ = 0;
  std::int64_t end_row_ = 0;
  Scratch<A>& scratch_;
};

// A work item with all its spans, one after the other.
template <typename A>
void attend(const AttentionProblem<A>& problem, const AttentionWork& work) {
  float* const total = thread_scratch<A>().total;
  float* const next = thread_scratch<A>().next;
  SpanAttention<A>(problem, work, work.first_span).run(total);
  for (std::int64_t span = work.first_span + 1; span < work.first_span + work.num_spans; ++span) {
    SpanAttention<A> attention(problem, work, span);
    attention.run(next);
    for (std::int64_t row = attention.first_row(); row < attention.end_row(); ++row) {
      const bool is_first = span == problem.spans(work, work.row_begin + row).begin;
      (is_first ? copy : join)(problem.partial(total, row), problem.partial(next, row), problem.head_dim());
    }
  }
  for (std::int64_t row = 0; row < work.row_end - work.row_begin; ++row) {
    write_output(problem.partial(total, row), problem.head_dim(), problem.output(work, work.row_begin + row));
  }
}

// Work whose spans were computed apart, at work.partials: [span][row].
template <typename A>
void join_spans(const AttentionProblem<A>& problem, const AttentionWork& work, float* partials) {
  const std::int64_t num_rows = work.row_end - work.row_begin;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const KeyRange spans = problem.spans(work, work.row_begin + row);
    const Partial total = problem.partial(partials, (spans.begin - work.first_span) * num_rows + row);
    for (std::int64_t span = spans.begin + 1; span < spans.end; ++span) {
      join(total, problem.partial(partials, (span - work.first_span) * num_rows + row), problem.head_dim());
    }
    write_output(total, problem.head_dim(), problem.output(work, work.row_begin + row));
  }
}

template <typename A>
void attend_all(const PagedAttentionParams& params, ThreadPool& pool) {
  const AttentionProblem<A> problem(params);
  Workspace own;
  const AttentionPlan plan =
      plan_attention(params, problem.partial_size(), params.workspace != nullptr ? *params.workspace : own);
  for_each_tile(pool, static_cast<std::int64_t>(plan.tiles.size()), [&](std::int64_t tile) {
    const auto [index, span] = plan.tiles[tile];
    const AttentionWork& work = plan.works[index];
    if (work.partials < 0) {
      attend(problem, work);
    } else {
      const std::int64_t num_rows = work.row_end - work.row_begin;
      SpanAttention<A>(problem, work, work.first_span + span)
          .run(plan.partials + work.partials + span * num_rows * problem.partial_size());
    }
  });
  for_each_tile(pool, static_cast<std::int64_t>(plan.joins.size()), [&](std::int64_t i) {
    const AttentionWork& work = plan.works[plan.joins[i]];
    join_spans(problem, work, plan.partials + work.partials);
  });
}

}  // namespace

void paged_attention(const PagedAttentionParams& params, ThreadPool& pool) {
  validate(params);
  with_element(params.q.dtype, [&](auto element) { attend_all<decltype(element)>(params, pool); });
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
