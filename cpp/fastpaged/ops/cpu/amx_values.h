// Values of a span as tiles of 32 keys by 16 elements [pair of keys][16][2], which is what AMX multiplies weights by.
#pragma once

#include <cstdint>

// What stands beside the tiles is AVX-512's.
#define FASTPAGED_VECTOR_ISA avx512
#include "fastpaged/ops/cpu/amx_products.h"
#include "fastpaged/ops/cpu/attention_problem.h"
#include "fastpaged/ops/cpu/tile_fetcher.h"
#include "fastpaged/ops/cpu/vector.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu::avx512 {
namespace {

constexpr std::int64_t kGroupsPerSpan = kSpan / kAmxDepth;
constexpr std::int64_t kTilesPerGroup = kAmxDepth / kKeyTile;

// The groups of kAmxDepth keys that the keys lie in.
constexpr KeyRange groups_of(KeyRange keys) {
  return {keys.begin / kAmxDepth, (keys.end + kAmxDepth - 1) / kAmxDepth};
}
constexpr bool holds(KeyRange keys, std::int64_t key) {
  return key >= keys.begin && key < keys.end;
}

}  // namespace
}  // namespace fastpaged::cpu::avx512

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)
namespace fastpaged::cpu::avx512 {

// Of a pair of keys, bits for those in the range.
static inline std::uint32_t pair_mask(KeyRange keys, std::int64_t key) {
  return (holds(keys, key) ? 0x0000FFFFU : 0U) | (holds(keys, key + 1) ? 0xFFFF0000U : 0U);
}

// The values of the tile of keys at first_key; keys outside `seen` become zero. Returns whether those that not all see,
// the ones outside `common`, are finite.
static inline bool copy_values(const BFloat16* from, std::int64_t head_dim, std::int64_t first_key, KeyRange seen,
                               KeyRange common, BFloat16* to) {
  const __m512i exponent = _mm512_set1_epi32(0x7F807F80);
  __mmask32 not_finite = 0;
  for (std::int64_t key = first_key; key < first_key + kKeyTile; key += 2) {
    const std::uint32_t kept = pair_mask(seen, key);
    const std::uint32_t doubtful = kept & ~pair_mask(common, key);
    const __m512i keep = _mm512_set1_epi32(static_cast<int>(kept));
    const __m512i check = _mm512_and_si512(exponent, _mm512_set1_epi32(static_cast<int>(doubtful)));
    for (std::int64_t d = 0; d < head_dim; d += kLanes, from += 2 * kLanes, to += 2 * kLanes) {
      const __m512i pairs = _mm512_and_si512(_mm512_loadu_si512(from), keep);
      _mm512_storeu_si512(to, pairs);
      not_finite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(pairs, check), exponent);
    }
  }
  return not_finite == 0;
}

static inline void clear_weights(BFloat16* weights, KeyRange groups) {
  for (std::int64_t group = groups.begin; group < groups.end; ++group) {
    _mm512_storeu_si512(weights + group * kAmxDepth, _mm512_setzero_si512());
  }
}

// Sums as they are, but for the sign of a zero: what weighs nothing is added to some rows and not to others, and may
// turn -0 into 0. count: a multiple of kLanes.
static inline void copy_sums(const float* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    store(to + i, add(load(from + i), zero()));
  }
}

}  // namespace fastpaged::cpu::avx512
FASTPAGED_END_TARGET

namespace fastpaged::cpu::avx512 {
namespace {

// Where the values of a span lie, by groups of keys. A group whose two tiles are neighbours in the cache stays there;
// another is copied. So is one that holds keys which not every row sees: their weights are zero, but a slot that nobody
// sees may hold NaN, and zero times that is NaN.
class AmxValues {
 public:
  // For rows that see, between them, the keys `seen`, and each of them those in `common`; both of the span. Tiles are
  // found in `tiles`. False: a key that some rows do not see has a value that is not finite, which would reach them.
  bool place(const SpanTiles<BFloat16>& tiles, std::int64_t head_dim, KeyRange seen, KeyRange common,
             TileFetcher<BFloat16>& fetcher) {
    const KeyRange groups = groups_of(seen);
    bool is_clean = true;
    for (std::int64_t group = groups.begin; group < groups.end; ++group) {
      fetcher.fetch(kTilesPerGroup);
      is_clean &= place_group(tiles, head_dim, group, seen, common);
    }
    return is_clean;
  }

  [[nodiscard]] const BFloat16* group(std::int64_t index) const { return groups_[index]; }

 private:
  bool place_group(const SpanTiles<BFloat16>& tiles, std::int64_t head_dim, std::int64_t group, KeyRange seen,
                   KeyRange common) {
    const std::int64_t first_key = group * kAmxDepth;
    const std::int64_t first = group * kTilesPerGroup;
    const std::int64_t tile_size = kKeyTile * head_dim;
    if (holds(common, first_key) && holds(common, first_key + kAmxDepth - 1) &&
        tiles.values[first + 1] == tiles.values[first] + tile_size) {
      groups_[group] = tiles.values[first];
      return true;
    }
    BFloat16* const to = room_ + first * tile_size;
    groups_[group] = to;
    const KeyRange found = tiles_of(seen);
    bool is_clean = true;
    for (std::int64_t i = 0; i < kTilesPerGroup; ++i) {
      // A tile beyond those found gives zeros, whatever is copied.
      const BFloat16* from = holds(found, first + i) ? tiles.values[first + i] : nothing_;
      is_clean &= copy_values(from, head_dim, first_key + i * kKeyTile, seen, common, to + i * tile_size);
    }
    return is_clean;
  }

  const BFloat16* groups_[kGroupsPerSpan] = {};
  alignas(64) BFloat16 room_[kSpan * kMaxHeadDim] = {};
  alignas(64) BFloat16 nothing_[kKeyTile * kMaxHeadDim] = {};
};

}  // namespace
}  // namespace fastpaged::cpu::avx512
