// Linear layers. Each output element is one accumulator that takes its k in order, in bfloat16 two at a time, from the
// first to the last, whatever the number of rows: blocking only decides who is computed beside whom.
#include <algorithm>
#include <array>
#include <utility>

#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/linear_epilogue.h"
#include "fastpaged/ops/cpu/packed_rows.h"
#include "fastpaged/ops/cpu/vector.h"
#include "fastpaged/ops/cpu/vector_ops.h"
#include "fastpaged/ops/cpu/weight_panels.h"
#include "fastpaged/ops/element.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {
namespace {

constexpr bool kManyRegisters = kLanes == 16;  // 32 of them; else 16
constexpr int kVectorsPerPanel = kPanelWidth / kLanes;

// Rows side by side against one panel: as many accumulators as leave registers for what they are fed from. One vector
// of weights then serves so many dot products that memory keeps up from the first block of rows on.
constexpr int kMaxRows = kManyRegisters ? 28 : 5;
constexpr std::int64_t kRowsPerTile = kManyRegisters ? 5 * kMaxRows : 24 * kMaxRows;  // read the weights once for these

// Few rows take several panels at once, to have several streams and sums on their way.
constexpr int panels_beside(std::int64_t rows) {
  return kManyRegisters ? (rows <= 8 ? 3 : rows <= 13 ? 2 : 1) : (rows <= 2 ? 2 : 1);
}
static_assert(panels_beside((kMaxRows + 1) / 2) == 1);  // wherever there are several blocks of rows

// A tile of work is about so many bytes of weights: enough to be worth claiming, few enough to share out evenly.
constexpr std::int64_t kBytesPerTile = 48 * 1024;
constexpr std::int64_t kPrefetchBytes = 4096;  // ahead in each of several panels

// Against one panel, many rows go in chunks of k: the words of a chunk stay in the first cache for all panels of a
// wave, and its weights for all blocks of rows. Sums wait in memory for the next chunk, which changes no bit of them.
constexpr std::int64_t kChunkSteps = 128;
constexpr std::int64_t kMaxWholeSteps = 320;  // of a panel that goes in one chunk
constexpr std::int64_t kWaveOfOneBlock = 6;   // panels
constexpr std::int64_t kWave = 2;             // with several blocks of rows
constexpr std::int64_t kStepBytes = 64;       // of a panel, in either dtype

// A block of rows against the panels beside each other.
template <typename A>
struct Block {
  const float* x;              // packed (packed_rows.h)
  const A* weight;             // first panel
  std::int64_t panel_size;     // elements
  std::int64_t num_panels;     // that there are from the first on; the last is repeated
  std::int64_t begin;          // elements of the panels to go through, from here
  std::int64_t end;            // to there
  const char* prefetch;        // against one panel: weights wanted soon
  std::int64_t prefetch_step;  // bytes to go on with every step
  float* sums;                 // [rows][kPanels * 16]: what there is unless begin is 0, and what will be
};

}  // namespace

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)

static inline Pairs load_weights(const BFloat16* from) {
  return load_pairs(from);
}
static inline Floats load_weights(const float* from) {
  return load(from);
}

// The word at x times one vector of weights.
static inline Floats multiply_add(const float* x, Pairs weights, Floats sum) {
  return dot(broadcast_pair(reinterpret_cast<const BFloat16*>(x)), weights, sum);
}
static inline Floats multiply_add(const float* x, Floats weights, Floats sum) {
  return fma(set1(*x), weights, sum);
}

// The products of one word of each row with one vector of each panel.
template <int kRows, int kVectors, typename W>
static inline void multiply_word(const float* x, const W (&weights)[kVectors], Floats (&sums)[kRows][kVectors]) {
#pragma GCC unroll 32
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = multiply_add(x + r, weights[v], sums[r][v]);
    }
  }
}

// kDepthStep k for all rows and panels: a word of a row each or, where pairs of bfloat16 are widened, two.
template <int kRows, int kVectors, typename A>
static inline void step(const float* x, const A* const (&panels)[kVectors / kVectorsPerPanel], std::int64_t at,
                        Floats (&sums)[kRows][kVectors]) {
  decltype(load_weights(panels[0])) weights[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    weights[v] = load_weights(panels[v / kVectorsPerPanel] + at + v % kVectorsPerPanel * kLanes * kDepthStep<A>);
  }
  if constexpr (kElementsPerWord<A> == kDepthStep<A>) {
    multiply_word(x, weights, sums);
  } else {
    Floats half[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      half[v] = first_of(weights[v]);
    }
    multiply_word(x, half, sums);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      half[v] = second_of(weights[v]);
    }
    multiply_word(x + kRows, half, sums);
  }
}

template <int kRows, int kPanels, typename A>
static void multiply(const Block<A>& block) {
  constexpr int kVectors = kPanels * kVectorsPerPanel;
  constexpr std::int64_t kStride = kPanels * kPanelWidth;
  constexpr std::int64_t kWords = kRows * kDepthStep<A> / kElementsPerWord<A>;
  Floats sums[kRows][kVectors];
#pragma GCC unroll 32
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = block.begin == 0 ? zero() : load(block.sums + r * kStride + v * kLanes);
    }
  }
  const A* panels[kPanels];
#pragma GCC unroll 8
  for (int p = 0; p < kPanels; ++p) {
    panels[p] = block.weight + std::min<std::int64_t>(p, block.num_panels - 1) * block.panel_size;
  }
  const float* x = block.x;
  const char* prefetch = block.prefetch;
  for (std::int64_t at = block.begin; at < block.end; at += kPanelWidth * kDepthStep<A>) {
    step(x, panels, at, sums);
    x += kWords;
    if constexpr (kPanels == 1) {
      _mm_prefetch(prefetch, _MM_HINT_T0);
      prefetch += block.prefetch_step;
    } else {
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) {
        _mm_prefetch(reinterpret_cast<const char*>(panels[p] + at) + kPrefetchBytes, _MM_HINT_T0);
      }
    }
  }
#pragma GCC unroll 32
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      store(block.sums + r * kStride + v * kLanes, sums[r][v]);
    }
  }
}

FASTPAGED_END_TARGET

namespace {

template <typename A>
using Multiply = void (*)(const Block<A>&);

// kMultiply<A>[rows - 1]: for a block of so many rows, against panels_beside(rows) panels.
template <typename A, int... kRowsLessOne>
constexpr std::array<Multiply<A>, sizeof...(kRowsLessOne)> multiply_table(
    std::integer_sequence<int, kRowsLessOne...> /*rows*/) {
  return {&multiply<kRowsLessOne + 1, panels_beside(kRowsLessOne + 1), A>...};
}
template <typename A>
constexpr auto kMultiply = multiply_table<A>(std::make_integer_sequence<int, kMaxRows>());

// A linear call as its tiles see it.
template <typename A>
class Problem {
 public:
  explicit Problem(const LinearParams& params)
      : params_(params),
        in_features_(params.weight->in_features()),
        panels_(num_panels(*params.weight)),
        row_tiles_(params.x.shape[0], kRowsPerTile),
        panels_per_tile_(panels_per_tile()),
        panel_tiles_((panels_ + panels_per_tile_ - 1) / panels_per_tile_) {}

  // Panels run fastest: the rows that a thread has packed serve all its tiles, whose weights follow each other.
  [[nodiscard]] std::int64_t num_tiles() const { return row_tiles_.count() * panel_tiles_; }

  void run(std::int64_t tile) const {
    const std::int64_t row_tile = tile / panel_tiles_;
    const std::int64_t first = tile % panel_tiles_ * panels_per_tile_;
    const EvenSplit blocks(row_tiles_.size(row_tile), kMaxRows);
    const float* x = packed(row_tiles_.begin(row_tile), blocks);
    const std::int64_t last = std::min(panels_, first + panels_per_tile_);
    const std::int64_t wave = blocks.count() == 1 ? kWaveOfOneBlock : kWave;
    alignas(64) float sums[kSums];
    alignas(64) float gates[kRowsPerTile * kPanelWidth];
    for (std::int64_t panel = first; panel < last; panel += wave) {
      const std::int64_t panels = std::min(wave, last - panel);
      multiply_wave(x, blocks, panel, panels, sums);
      finish_wave(
          blocks,
          {.sums = sums, .row = row_tiles_.begin(row_tile), .panel = panel, .num_panels = panels, .gates = gates});
    }
  }

 private:
  static constexpr std::int64_t kElementBytes = sizeof(A);
  static constexpr std::int64_t kStep = kPanelWidth * kDepthStep<A>;  // elements of a panel
  static constexpr std::int64_t kSums = std::max(kRowsPerTile * kWave, kMaxRows* kWaveOfOneBlock) * kPanelWidth;

  [[nodiscard]] std::int64_t panels_per_tile() const {
    const EvenSplit blocks(row_tiles_.max_size(), kMaxRows);
    const std::int64_t beside = panels_beside(blocks.max_size());
    const std::int64_t least = beside > 1 ? beside : blocks.count() == 1 ? 3 : 2;
    const std::int64_t bytes = panel_elements<A>(in_features_) * kElementBytes;
    const std::int64_t panels = least * std::max<std::int64_t>(1, kBytesPerTile / (least * bytes));
    return params_.weight->gated() ? panels + panels % 2 : panels;  // gates with their ups
  }

  [[nodiscard]] const float* packed(std::int64_t row, const EvenSplit& blocks) const {
    constexpr bool kRowIsPacked = kElementsPerWord<A> == kDepthStep<A>;
    if (kRowIsPacked && blocks.max_size() == 1 && in_features_ % kDepthStep<A> == 0) {
      return reinterpret_cast<const float*>(params_.x.row<const A>(row));
    }
    return packed_rows<A>(params_.x, row, blocks, call_);
  }

  // sums [groups of panels beside each other][rows][16 of each panel]
  void multiply_wave(const float* x, const EvenSplit& blocks, std::int64_t panel, std::int64_t panels,
                     float* sums) const {
    const std::int64_t beside = panels_beside(blocks.max_size());
    const std::int64_t panel_size = panel_elements<A>(in_features_);
    const A* weight = reinterpret_cast<const A*>(params_.weight->data()) + panel * panel_size;
    const std::int64_t used = row_depth<A>(in_features_) * kElementsPerWord<A> * kPanelWidth;
    const std::int64_t chunk = beside == 1 && used > kMaxWholeSteps * kStep ? kChunkSteps * kStep : used;
    const bool alone = blocks.count() == 1 && chunk == used;
    for (std::int64_t begin = 0; begin < used; begin += chunk) {
      for (std::int64_t p = 0; p < panels; p += beside) {
        // What comes next: the chunk of the panel beside it, or the first panel's next one, or the wave's that follows.
        const A* here = weight + p * panel_size + begin;
        const A* next = p + 1 < panels         ? here + panel_size
                        : begin + chunk < used ? weight + begin + chunk
                                               : weight + panels * panel_size;
        const Block<A> block{.x = x,
                             .weight = weight + p * panel_size,
                             .panel_size = panel_size,
                             .num_panels = panels - p,
                             .begin = begin,
                             .end = std::min(used, begin + chunk),
                             .prefetch = alone ? reinterpret_cast<const char*>(here) + kPrefetchBytes
                                               : reinterpret_cast<const char*>(next),
                             .prefetch_step = (kStepBytes + blocks.count() - 1) / blocks.count(),
                             .sums = sums + p * blocks.begin(blocks.count()) * kPanelWidth};
        multiply_blocks(block, blocks, beside);
      }
    }
  }

  // Each block of rows fetches its share of what comes next.
  void multiply_blocks(const Block<A>& all, const EvenSplit& blocks, std::int64_t beside) const {
    const std::int64_t words = all.begin / (kPanelWidth * kElementsPerWord<A>);  // of each row, behind us
    for (std::int64_t i = 0; i < blocks.count(); ++i) {
      Block<A> block = all;
      block.x += blocks.begin(i) * row_depth<A>(in_features_) + blocks.size(i) * words;
      block.prefetch += (all.end - all.begin) * kElementBytes * i / blocks.count();
      block.sums += blocks.begin(i) * beside * kPanelWidth;
      kMultiply<A>[static_cast<std::size_t>(blocks.size(i) - 1)](block);
    }
  }

  void finish_wave(const EvenSplit& blocks, const PanelSums& all) const {
    const std::int64_t beside = panels_beside(blocks.max_size());
    const std::int64_t rows = blocks.begin(blocks.count());
    for (std::int64_t p = 0; p < all.num_panels; p += beside) {
      PanelSums group = all;
      group.sums += p * rows * kPanelWidth;
      group.stride = beside * kPanelWidth;
      group.num_rows = rows;
      group.panel += p;
      group.num_panels = std::min(beside, all.num_panels - p);
      finish_sums(params_, group);
    }
  }

  const LinearParams& params_;
  const std::uint64_t call_ = RowScratch::next_call();
  std::int64_t in_features_;
  std::int64_t panels_;
  EvenSplit row_tiles_;
  std::int64_t panels_per_tile_;
  std::int64_t panel_tiles_;
};

}  // namespace

void multiply_panels(const LinearParams& params, ThreadPool& pool) {
  if (params.x.shape[0] == 0) {
    return;
  }
  with_element(params.weight->dtype(), [&](auto element) {
    const Problem<decltype(element)> problem(params);
    for_each_tile(pool, problem.num_tiles(), [&](std::int64_t tile) { problem.run(tile); });
  });
}

void linear(const LinearParams& params, ThreadPool& pool) {
  validate(params, kIsaName);
  multiply_panels(params, pool);
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
