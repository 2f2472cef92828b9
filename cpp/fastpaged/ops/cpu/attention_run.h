// Paged attention, once over Span, how the rows of a work item attend to one span (attention_span.h).
//
// The arithmetic of one (query, head) is fixed by its position, its keys and the params alone. Keys lie at absolute
// positions; each run of kSpan of them is a span, and gives a partial: the largest score, the sum of exponentials and
// the weighted sum of values, keys in order. Partials are joined in order of position, beginning with that of the first
// span the query sees. Who is computed beside whom, whether spans go to different threads, and the block size only move
// data.
//
// A query reads no key beyond its own position and none before its window: those slots may hold anything, NaN included.
#pragma once

#include <atomic>

#include "fastpaged/ops/cpu/attention_problem.h"
#include "fastpaged/ops/cpu/attention_span.h"
#include "fastpaged/ops/cpu/attention_work.h"
#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/workspace.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {
namespace {

template <typename Span>
using ProblemOf = AttentionProblem<typename Span::Element>;

// A work item with all its spans, one after the other. next: the first span of the one after it.
template <typename Span>
void attend(const ProblemOf<Span>& problem, const AttentionWork& work, typename Span::Registers& registers,
            SpanPlace next) {
  AttentionScratch<typename Span::Element>& scratch = thread_scratch<typename Span::Element>();
  const std::int64_t end_span = work.first_span + work.num_spans;
  for (std::int64_t span = work.first_span; span < end_span; ++span) {
    const bool is_first = span == work.first_span;
    Span attention(problem, work, span);
    attention.run(registers, is_first ? scratch.total : scratch.next,
                  span + 1 < end_span ? SpanPlace{&work, span + 1} : next);
    if (is_first) {
      continue;
    }
    AttentionRow at = problem.row(work, work.row_begin + attention.first_row());
    for (std::int64_t row = attention.first_row(); row < attention.end_row(); ++row, problem.advance(work, at)) {
      const bool is_first_of_row = span == problem.spans(at).begin;
      (is_first_of_row ? copy : join)(problem.partial(scratch.total, row), problem.partial(scratch.next, row),
                                      problem.head_dim());
    }
  }
  AttentionRow at = problem.row(work, work.row_begin);
  for (std::int64_t row = 0; row < work.row_end - work.row_begin; ++row, problem.advance(work, at)) {
    write_output(problem.partial(scratch.total, row), problem.head_dim(), problem.output(at));
  }
}

// Work whose spans were computed apart, at work.partials: [span][row].
template <typename Span>
void join_spans(const ProblemOf<Span>& problem, const AttentionWork& work, float* partials) {
  const std::int64_t num_rows = work.row_end - work.row_begin;
  AttentionRow at = problem.row(work, work.row_begin);
  for (std::int64_t row = 0; row < num_rows; ++row, problem.advance(work, at)) {
    const KeyRange spans = problem.spans(at);
    const Partial total = problem.partial(partials, (spans.begin - work.first_span) * num_rows + row);
    for (std::int64_t span = spans.begin + 1; span < spans.end; ++span) {
      join(total, problem.partial(partials, (span - work.first_span) * num_rows + row), problem.head_dim());
    }
    write_output(total, problem.head_dim(), problem.output(at));
  }
}

// One span of a work item; whoever is the last to finish one joins them.
template <typename Span>
void attend_apart(const ProblemOf<Span>& problem, AttentionWork& work, std::int64_t span, float* partials,
                  typename Span::Registers& registers, SpanPlace next) {
  const std::int64_t num_rows = work.row_end - work.row_begin;
  Span(problem, work, work.first_span + span).run(registers, partials + span * num_rows * problem.partial_size(), next);
  if (std::atomic_ref(work.num_pending).fetch_sub(1, std::memory_order_acq_rel) == 1) {
    join_spans<Span>(problem, work, partials);
  }
}

// Where the tile begins.
inline SpanPlace place_of(const AttentionPlan& plan, const AttentionTile& tile) {
  const AttentionWork& work = plan.works[tile.work];
  return {&work, work.first_span + tile.span};
}

template <typename Span>
void attend_tile(const ProblemOf<Span>& problem, const AttentionPlan& plan, std::int64_t index) {
  typename Span::Registers registers;
  const AttentionTile& tile = plan.tiles[index];
  const bool is_last = index + 1 == static_cast<std::int64_t>(plan.tiles.size());
  // Mostly the same thread's.
  const SpanPlace next_tile = is_last ? SpanPlace{nullptr, 0} : place_of(plan, plan.tiles[index + 1]);
  AttentionWork* const first = &plan.works[tile.work];
  if (first->partials >= 0) {
    return attend_apart<Span>(problem, *first, tile.span, plan.partials + first->partials, registers, next_tile);
  }
  const AttentionWork* const end = first + tile.num_works;
  for (const AttentionWork* work = first; work < end; ++work) {
    const AttentionWork* const next = work + 1;
    attend<Span>(problem, *work, registers, next < end ? SpanPlace{next, next->first_span} : next_tile);
  }
}

template <typename Span>
void attend_all(const PagedAttentionParams& params, ThreadPool& pool) {
  const ProblemOf<Span> problem(params);
  Workspace own;
  const AttentionPlan plan =
      plan_attention(params, problem.partial_size(), params.workspace != nullptr ? *params.workspace : own);
  for_each_tile(pool, static_cast<std::int64_t>(plan.tiles.size()),
                [&](std::int64_t tile) { attend_tile<Span>(problem, plan, tile); });
}

}  // namespace
}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
