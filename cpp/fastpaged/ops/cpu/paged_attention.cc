// Paged attention with AVX-512.
//
// The arithmetic of one (query, head) is fixed by its position and its keys alone. Keys lie at absolute positions; each
// run of kSpan of them is a span, and gives a partial: the largest score, the sum of exponentials and the weighted sum
// of values, keys in order. Partials are joined in order of position. Who is computed beside whom, whether spans go to
// different threads, and the block size only move data.
//
// A query reads no key beyond its own position: those slots may hold anything, NaN included.
#include <algorithm>
#include <cstring>
#include <memory>

#include "fastpaged/ops/cpu/attention_work.h"
#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/ops.h"
#include "fastpaged/ops/cpu/vector_math.h"
#include "fastpaged/ops/kv_layout.h"
#include "fastpaged/ops/validate.h"
#include "fastpaged/ops/workspace.h"

namespace fastpaged::cpu {
namespace {

constexpr std::int64_t kKeyTile = 16;  // keys side by side in one vector of scores
constexpr std::int64_t kTilesPerSpan = kSpan / kKeyTile;
constexpr std::int64_t kMaxPartialSize = partial_size_of(kMaxHeadDim);

// One thread's working memory.
struct Scratch {
  // Keys of a span, transposed: [tile][D / 2 pairs][16 keys], a pair being two neighbours of D.
  alignas(64) std::uint32_t keys[kTilesPerSpan * (kMaxHeadDim / 2) * kKeyTile];
  alignas(64) float scores[kRowsPerWork][kSpan];
  const BFloat16* key_at[kSpan];
  // Partials of the rows of one work item: of all spans so far, and of the next one.
  alignas(64) float total[kRowsPerWork * kMaxPartialSize];
  alignas(64) float next[kRowsPerWork * kMaxPartialSize];
};

Scratch& thread_scratch() {
  thread_local const std::unique_ptr<Scratch> scratch = std::make_unique<Scratch>();
  return *scratch;
}

}  // namespace

FASTPAGED_BEGIN_TARGET(FASTPAGED_AVX512_FEATURES)

// ---- keys

// A 16 x 16 matrix of 32-bit elements, in four rounds: within pairs, within quarters, between quarters.
static inline void transpose(__m512i (&m)[16]) {
  __m512i a[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = _mm512_unpacklo_epi32(m[2 * i], m[2 * i + 1]);
    a[2 * i + 1] = _mm512_unpackhi_epi32(m[2 * i], m[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    m[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    m[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    m[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    m[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    a[i] = _mm512_shuffle_i32x4(m[i], m[i + 4], 0x88);
    a[i + 4] = _mm512_shuffle_i32x4(m[i], m[i + 4], 0xDD);
    a[i + 8] = _mm512_shuffle_i32x4(m[i + 8], m[i + 12], 0x88);
    a[i + 12] = _mm512_shuffle_i32x4(m[i + 8], m[i + 12], 0xDD);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    m[i] = _mm512_shuffle_i32x4(a[i], a[i + 8], 0x88);
    m[i + 4] = _mm512_shuffle_i32x4(a[i + 4], a[i + 12], 0x88);
    m[i + 8] = _mm512_shuffle_i32x4(a[i], a[i + 8], 0xDD);
    m[i + 12] = _mm512_shuffle_i32x4(a[i + 4], a[i + 12], 0xDD);
  }
}

// Transposes up to 16 keys; those that are not there are zero.
static void transpose_keys(const BFloat16* const* key_at, std::int64_t num_keys, std::int64_t head_dim,
                           std::uint32_t* to) {
  for (std::int64_t d = 0; d < head_dim; d += 2 * kLanes) {
    const std::int64_t pairs = (head_dim - d) / 2 < kLanes ? (head_dim - d) / 2 : kLanes;
    __m512i rows[kKeyTile];
#pragma GCC unroll 16
    for (int key = 0; key < kKeyTile; ++key) {
      rows[key] =
          key < num_keys ? _mm512_maskz_loadu_epi32(first_lanes(pairs), key_at[key] + d) : _mm512_setzero_si512();
    }
    transpose(rows);
    for (std::int64_t i = 0; i < pairs; ++i, to += kKeyTile) {
      _mm512_store_si512(to, rows[i]);
    }
  }
}

// ---- scores: q . k for kRows query rows and kTiles tiles of keys; one accumulator per score, D in order

template <int kRows, int kTiles>
static void score(const BFloat16* const* queries, const std::uint32_t* keys, std::int64_t head_dim, float* scores) {
  const std::int64_t tile_size = head_dim / 2 * kKeyTile;
  __m512 sums[kRows][kTiles];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTiles; ++t) {
      sums[r][t] = _mm512_setzero_ps();
    }
  }
  for (std::int64_t d = 0; d < head_dim; d += 2, keys += kKeyTile) {
    __m512bh pairs[kTiles];
#pragma GCC unroll 4
    for (int t = 0; t < kTiles; ++t) {
      pairs[t] = reinterpret_cast<__m512bh>(_mm512_load_si512(keys + t * tile_size));
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      std::int32_t bits;
      std::memcpy(&bits, queries[r] + d, sizeof(bits));
      const auto query = reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
#pragma GCC unroll 4
      for (int t = 0; t < kTiles; ++t) {
        sums[r][t] = _mm512_dpbf16_ps(sums[r][t], query, pairs[t]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTiles; ++t) {
      _mm512_store_ps(scores + r * kSpan + t * kKeyTile, sums[r][t]);
    }
  }
}

template <int kRows>
static void score_tiles(const BFloat16* const* queries, const std::uint32_t* keys, std::int64_t head_dim,
                        std::int64_t num_tiles, float* scores) {
  const std::int64_t tile_size = head_dim / 2 * kKeyTile;
  std::int64_t t = 0;
  for (; t + 4 <= num_tiles; t += 4) {
    score<kRows, 4>(queries, keys + t * tile_size, head_dim, scores + t * kKeyTile);
  }
  for (; t + 2 <= num_tiles; t += 2) {
    score<kRows, 2>(queries, keys + t * tile_size, head_dim, scores + t * kKeyTile);
  }
  for (; t < num_tiles; ++t) {
    score<kRows, 1>(queries, keys + t * tile_size, head_dim, scores + t * kKeyTile);
  }
}

// ---- softmax: scores of the first num_keys keys become exponentials, the rest of their last tile zeros

static void exponentials(float* scores, std::int64_t num_keys, float scale, float* largest, float* sum) {
  const __m512 factor = _mm512_set1_ps(scale);
  __m512 high = _mm512_set1_ps(-__builtin_inff());
  for (std::int64_t j = 0; j < num_keys; j += kLanes) {
    const __m512 scaled = _mm512_mul_ps(_mm512_load_ps(scores + j), factor);
    _mm512_store_ps(scores + j, scaled);
    high = _mm512_mask_max_ps(high, first_lanes(num_keys - j), high, scaled);
  }
  *largest = _mm512_reduce_max_ps(high);
  const __m512 shift = _mm512_set1_ps(*largest);
  __m512 sums = _mm512_setzero_ps();
  for (std::int64_t j = 0; j < num_keys; j += kLanes) {
    const __m512 weights = exp(_mm512_sub_ps(_mm512_load_ps(scores + j), shift));
    const __m512 present = _mm512_maskz_mov_ps(first_lanes(num_keys - j), weights);
    _mm512_store_ps(scores + j, present);
    sums = _mm512_add_ps(sums, present);
  }
  *sum = sum_of_lanes(sums);
}

// ---- values: mix[r] += sum of weights[r][j] * v[j] over keys [begin, end), j in order, for kRows rows, 16 kParts of D

template <int kRows, int kParts>
static void mix_values(const float* weights, const BFloat16* const* key_at, std::int64_t value_offset,
                       std::int64_t begin, std::int64_t end, float* mix, std::int64_t mix_stride) {
  __m512 sums[kRows][kParts];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kParts; ++c) {
      sums[r][c] = _mm512_loadu_ps(mix + r * mix_stride + c * kLanes);
    }
  }
  for (std::int64_t j = begin; j < end; ++j) {
    const BFloat16* value = key_at[j] + value_offset;
    __m512 parts[kParts];
#pragma GCC unroll 4
    for (int c = 0; c < kParts; ++c) {
      parts[c] = load_bfloat16(value + c * kLanes);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512 weight = _mm512_set1_ps(weights[r * kSpan + j]);
#pragma GCC unroll 4
      for (int c = 0; c < kParts; ++c) {
        sums[r][c] = _mm512_fmadd_ps(weight, parts[c], sums[r][c]);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kParts; ++c) {
      _mm512_storeu_ps(mix + r * mix_stride + c * kLanes, sums[r][c]);
    }
  }
}

template <int kRows>
static void mix_rows(const float* weights, const BFloat16* const* key_at, std::int64_t value_offset, std::int64_t begin,
                     std::int64_t end, std::int64_t head_dim, float* mix, std::int64_t mix_stride) {
  std::int64_t d = 0;
  for (; d + 4 * kLanes <= head_dim; d += 4 * kLanes) {
    mix_values<kRows, 4>(weights, key_at, value_offset + d, begin, end, mix + d, mix_stride);
  }
  for (; d < head_dim; d += kLanes) {
    mix_values<kRows, 1>(weights, key_at, value_offset + d, begin, end, mix + d, mix_stride);
  }
}

// ---- partials

// into = into joined with next, the span that follows.
static void join(Partial into, Partial next, std::int64_t head_dim) {
  const float largest = *into.largest > *next.largest ? *into.largest : *next.largest;
  const __m512 shift = _mm512_set1_ps(largest);
  const __m512 old_factor = exp(_mm512_sub_ps(_mm512_set1_ps(*into.largest), shift));
  const __m512 new_factor = exp(_mm512_sub_ps(_mm512_set1_ps(*next.largest), shift));
  *into.largest = largest;
  *into.sum = *into.sum * _mm512_cvtss_f32(old_factor) + *next.sum * _mm512_cvtss_f32(new_factor);
  for (std::int64_t d = 0; d < head_dim; d += kLanes) {
    const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(next.mix + d), new_factor);
    _mm512_storeu_ps(into.mix + d, _mm512_fmadd_ps(_mm512_loadu_ps(into.mix + d), old_factor, scaled));
  }
}

static void write_output(Partial partial, std::int64_t head_dim, BFloat16* out) {
  const __m512 sum = _mm512_set1_ps(*partial.sum);
  for (std::int64_t d = 0; d < head_dim; d += kLanes) {
    store_bfloat16(out + d, _mm512_div_ps(_mm512_loadu_ps(partial.mix + d), sum));
  }
}

static void clear(float* values, std::int64_t size) {
  for (std::int64_t i = 0; i < size; i += kLanes) {
    _mm512_storeu_ps(values + i, _mm512_setzero_ps());
  }
}

FASTPAGED_END_TARGET

namespace {

constexpr int kScoreRows = 4;
constexpr int kMixRows = 6;
constexpr decltype(&score_tiles<1>) kScoreTiles[] = {nullptr, &score_tiles<1>, &score_tiles<2>, &score_tiles<3>,
                                                     &score_tiles<4>};
constexpr decltype(&mix_rows<1>) kMixTable[] = {nullptr,      &mix_rows<1>, &mix_rows<2>, &mix_rows<3>,
                                                &mix_rows<4>, &mix_rows<5>, &mix_rows<6>};

// The rows of one work item over one span.
class SpanAttention {
 public:
  SpanAttention(const AttentionProblem& problem, const AttentionWork& work, std::int64_t span)
      : problem_(problem), work_(work), first_key_(span * kSpan), scratch_(thread_scratch()) {}

  // partials: one per row of the work. Rows whose query stands before the span are left alone.
  void run(float* partials) {
    const std::int64_t num_rows = work_.row_end - work_.row_begin;
    std::int64_t first_row = 0;
    while (first_row < num_rows && keys_of(first_row) == 0) {
      ++first_row;
    }
    gather_keys(keys_of(num_rows - 1));
    for (std::int64_t row = first_row; row < num_rows; row += kScoreRows) {
      score_rows(row, std::min<std::int64_t>(kScoreRows, num_rows - row));
    }
    for (std::int64_t row = first_row; row < num_rows; ++row) {
      const Partial partial = problem_.partial(partials, row);
      exponentials(scratch_.scores[row], keys_of(row), problem_.scale(), partial.largest, partial.sum);
      clear(partial.mix, problem_.head_dim());
    }
    for (std::int64_t row = first_row; row < num_rows; row += kMixRows) {
      mix_block(partials, row, std::min<std::int64_t>(kMixRows, num_rows - row));
    }
  }

 private:
  // Keys of this span that the row's query sees; rows are in order of position.
  [[nodiscard]] std::int64_t keys_of(std::int64_t row) const {
    const std::int64_t seen = problem_.position(work_, work_.row_begin + row) + 1 - first_key_;
    return std::clamp<std::int64_t>(seen, 0, kSpan);
  }

  void gather_keys(std::int64_t num_keys) {
    problem_.locate_keys(work_, first_key_, num_keys, scratch_.key_at);
    const std::int64_t tile_size = problem_.head_dim() / 2 * kKeyTile;
    for (std::int64_t j = 0; j < num_keys; j += kKeyTile) {
      transpose_keys(scratch_.key_at + j, std::min(kKeyTile, num_keys - j), problem_.head_dim(),
                     scratch_.keys + j / kKeyTile * tile_size);
    }
  }

  void score_rows(std::int64_t row, std::int64_t count) {
    const BFloat16* queries[kScoreRows] = {};
    for (std::int64_t r = 0; r < count; ++r) {
      queries[r] = problem_.query(work_, work_.row_begin + row + r);
    }
    const std::int64_t num_tiles = (keys_of(row + count - 1) + kKeyTile - 1) / kKeyTile;
    kScoreTiles[count](queries, scratch_.keys, problem_.head_dim(), num_tiles, scratch_.scores[row]);
  }

  // Together over the keys that all rows see, then each over those of its own.
  void mix_block(float* partials, std::int64_t row, std::int64_t count) {
    const std::int64_t common = keys_of(row);
    const std::int64_t stride = problem_.partial_size();
    const std::int64_t value_offset = problem_.cache().value_offset;
    kMixTable[count](scratch_.scores[row], scratch_.key_at, value_offset, 0, common, problem_.head_dim(),
                     problem_.partial(partials, row).mix, stride);
    for (std::int64_t r = row; r < row + count; ++r) {
      mix_rows<1>(scratch_.scores[r], scratch_.key_at, value_offset, common, keys_of(r), problem_.head_dim(),
                  problem_.partial(partials, r).mix, stride);
    }
  }

  const AttentionProblem& problem_;
  const AttentionWork& work_;
  std::int64_t first_key_;
  Scratch& scratch_;
};

// A work item with all its spans, one after the other.
void attend(const AttentionProblem& problem, const AttentionWork& work) {
  float* const total = thread_scratch().total;
  float* const next = thread_scratch().next;
  const std::int64_t num_rows = work.row_end - work.row_begin;
  SpanAttention(problem, work, 0).run(total);
  for (std::int64_t span = 1; span < work.num_spans; ++span) {
    SpanAttention(problem, work, span).run(next);
    for (std::int64_t row = 0; row < num_rows; ++row) {
      if (problem.position(work, work.row_begin + row) >= span * kSpan) {
        join(problem.partial(total, row), problem.partial(next, row), problem.head_dim());
      }
    }
  }
  for (std::int64_t row = 0; row < num_rows; ++row) {
    write_output(problem.partial(total, row), problem.head_dim(), problem.output(work, work.row_begin + row));
  }
}

// Work whose spans were computed apart, at work.partials: [span][row].
void join_spans(const AttentionProblem& problem, const AttentionWork& work, float* partials) {
  const std::int64_t num_rows = work.row_end - work.row_begin;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const Partial total = problem.partial(partials, row);
    for (std::int64_t span = 1; span <= problem.position(work, work.row_begin + row) / kSpan; ++span) {
      join(total, problem.partial(partials, span * num_rows + row), problem.head_dim());
    }
    write_output(total, problem.head_dim(), problem.output(work, work.row_begin + row));
  }
}

}  // namespace

void paged_attention(const PagedAttentionParams& params, ThreadPool& pool) {
  validate(params);
  const AttentionProblem problem(params);
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
      SpanAttention(problem, work, span).run(plan.partials + work.partials + span * num_rows * problem.partial_size());
    }
  });
  for_each_tile(pool, static_cast<std::int64_t>(plan.joins.size()), [&](std::int64_t i) {
    const AttentionWork& work = plan.works[plan.joins[i]];
    join_spans(problem, work, plan.partials + work.partials);
  });
}

}  // namespace fastpaged::cpu
