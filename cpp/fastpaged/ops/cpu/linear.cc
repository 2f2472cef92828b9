// Linear layers with the AVX-512 bfloat16 dot product. Each output element is one accumulator that takes its pairs of k
// in order, from the first to the last, whatever the number of rows: blocking only decides who is computed beside whom.
#include <algorithm>
#include <cstring>

#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/ops.h"
#include "fastpaged/ops/cpu/pair_tiles.h"
#include "fastpaged/ops/cpu/vector_math.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu {
namespace {

constexpr std::int64_t kPanelsPerTile = 3;  // with 8 rows: 24 accumulators of 32 registers
constexpr std::int64_t kRowsPerBlock = 8;
constexpr std::int64_t kRowsPerTile = 128;    // read the weights once for these
constexpr std::int64_t kPrefetch = 4096 / 2;  // elements ahead in each panel

struct Block {
  const BFloat16* x;
  std::int64_t x_stride;
  const BFloat16* weight;  // first panel
  std::int64_t panel_stride;
  std::int64_t in_features;
  float* out;
  std::int64_t out_stride;
  __mmask16 last_columns;  // of the last panel
};

}  // namespace

FASTPAGED_BEGIN_TARGET(FASTPAGED_AVX512_FEATURES)

static inline __m512bh broadcast_pair(const BFloat16* pair) {
  std::int32_t bits;
  std::memcpy(&bits, pair, sizeof(bits));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
}

template <int kRows, int kPanels>
static void multiply(const Block& block) {
  __m512 sums[kRows][kPanels];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      sums[r][p] = _mm512_setzero_ps();
    }
  }
  const BFloat16* weight = block.weight;
  const std::int64_t even = block.in_features & ~std::int64_t{1};
  for (std::int64_t k = 0; k < even; k += 2, weight += kPairVector) {
    __m512bh pairs[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      pairs[p] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(weight + p * block.panel_stride));
      _mm_prefetch(reinterpret_cast<const char*>(weight + p * block.panel_stride + kPrefetch), _MM_HINT_T0);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512bh x = broadcast_pair(block.x + r * block.x_stride + k);
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) {
        sums[r][p] = _mm512_dpbf16_ps(sums[r][p], x, pairs[p]);
      }
    }
  }
  if (even < block.in_features) {
    for (int r = 0; r < kRows; ++r) {
      const BFloat16 pair[2] = {block.x[r * block.x_stride + even], BFloat16{0}};
      for (int p = 0; p < kPanels; ++p) {
        const auto weights = reinterpret_cast<__m512bh>(_mm512_loadu_si512(weight + p * block.panel_stride));
        sums[r][p] = _mm512_dpbf16_ps(sums[r][p], broadcast_pair(pair), weights);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      const __mmask16 columns = p == kPanels - 1 ? block.last_columns : static_cast<__mmask16>(0xFFFF);
      _mm512_mask_storeu_ps(block.out + r * block.out_stride + p * kPanelWidth, columns, sums[r][p]);
    }
  }
}

template <int kPanels>
static void multiply_rows(Block block, std::int64_t num_rows) {
  using Multiply = void (*)(const Block&);
  static constexpr Multiply kByRows[] = {nullptr,
                                         &multiply<1, kPanels>,
                                         &multiply<2, kPanels>,
                                         &multiply<3, kPanels>,
                                         &multiply<4, kPanels>,
                                         &multiply<5, kPanels>,
                                         &multiply<6, kPanels>,
                                         &multiply<7, kPanels>,
                                         &multiply<8, kPanels>};
  while (num_rows > 0) {
    const std::int64_t rows = num_rows < kRowsPerBlock ? num_rows : kRowsPerBlock;
    kByRows[rows](block);
    block.x += rows * block.x_stride;
    block.out += rows * block.out_stride;
    num_rows -= rows;
  }
}

FASTPAGED_END_TARGET

PackedLinear pack_linear_avx512(std::span<const TensorView> parts, DType dtype, ThreadPool& pool) {
  return pack_pair_tiles(parts, dtype, "avx512", pool);
}

void linear_avx512(const LinearParams& params, ThreadPool& pool) {
  validate(params, "avx512");
  const std::int64_t num_rows = params.x.shape[0];
  const std::int64_t out_features = params.weight->out_features();
  const std::int64_t panels = num_panels(out_features);
  const std::int64_t panel_tiles = (panels + kPanelsPerTile - 1) / kPanelsPerTile;
  const std::int64_t row_tiles = (num_rows + kRowsPerTile - 1) / kRowsPerTile;
  const std::int64_t panel_stride = panel_elements(params.weight->in_features());
  const auto* weight = reinterpret_cast<const BFloat16*>(params.weight->data());
  // Row tiles run fastest: the panels of one tile serve them all while they are in the cache.
  for_each_tile(pool, panel_tiles * row_tiles, [&](std::int64_t tile) {
    const std::int64_t panel = tile / row_tiles * kPanelsPerTile;
    const std::int64_t row = tile % row_tiles * kRowsPerTile;
    const std::int64_t count = std::min(kPanelsPerTile, panels - panel);
    const Block block{.x = params.x.row<const BFloat16>(row),
                      .x_stride = params.x.strides[0],
                      .weight = weight + panel * panel_stride,
                      .panel_stride = panel_stride,
                      .in_features = params.weight->in_features(),
                      .out = params.out.row<float>(row) + panel * kPanelWidth,
                      .out_stride = params.out.strides[0],
                      .last_columns = first_lanes(out_features - (panel + count - 1) * kPanelWidth)};
    const std::int64_t rows = std::min(kRowsPerTile, num_rows - row);
    switch (count) {
      case 1:
        return multiply_rows<1>(block, rows);
      case 2:
        return multiply_rows<2>(block, rows);
      default:
        return multiply_rows<3>(block, rows);
    }
  });
}

}  // namespace fastpaged::cpu
