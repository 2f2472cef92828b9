// Tiles of keys and values of paged attention where the cache holds 8-bit codes: widened to what they are worth, each
// product of code and scale rounded to A, in the order of KVLayout. From there on all arithmetic is the same.
#pragma once

#include <cstdint>

#include "fastpaged/ops/cpu/attention_problem.h"
#include "fastpaged/ops/cpu/attention_scores.h"
#include "fastpaged/ops/cpu/attention_tiles.h"
#include "fastpaged/ops/cpu/code_vectors.h"
#include "fastpaged/ops/cpu/vector.h"
#include "fastpaged/ops/validate.h"

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)
namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

template <DType kCode>
static inline Floats unit_scale(Floats scales) {
  return mul(scales, set1(1.0F / kCodeUnit<kCode>));
}

// Into the fastest cache, unlike elements: half the bytes have room there, and what is widened waits for nothing else.
static inline void fetch_codes(const void* from) {
  __builtin_prefetch(from, 0, 3);
}

static inline const float* scales_of(const std::uint8_t* run, std::int64_t head_dim) {
  return reinterpret_cast<const float*>(run + kKeyTile * head_dim);
}

// A tile, as a run of KVCodeLayout has it. after: the run that is read somewhat later, fetched line by line beside.
template <DType kCode>
static void widen_keys(const std::uint8_t* run, const std::uint8_t* after, std::int64_t head_dim, BFloat16* to) {
  constexpr std::int64_t kVectors = kKeyTile / kLanes;
  PairScales scales[kVectors];
  for (std::int64_t v = 0; v < kVectors; ++v) {
    scales[v] = key_scales(scales_of(run, head_dim) + v * kLanes, 1.0F / kCodeUnit<kCode>);
  }
  for (std::int64_t i = 0; i < kKeyTile * head_dim; i += 2 * kKeyTile) {
    if (i % 64 == 0) {
      fetch_codes(after + i);
    }
#pragma GCC unroll 2
    for (std::int64_t v = 0; v < kVectors; ++v) {
      const std::int64_t at = i + 2 * v * kLanes;
      store_pairs(to + at, widen_pairs<kCode>(run + at, scales[v]));
    }
  }
  fetch_codes(scales_of(after, head_dim));
}

template <DType kCode>
static void widen_values(const std::uint8_t* run, const std::uint8_t* after, std::int64_t head_dim, BFloat16* to) {
  for (std::int64_t slot = 0; slot < kKeyTile; slot += 2) {
    const PairScales scales = value_scales(scales_of(run, head_dim) + slot, 1.0F / kCodeUnit<kCode>);
    for (std::int64_t i = slot * head_dim; i < (slot + 2) * head_dim; i += 2 * kLanes) {
      if (i % 64 == 0) {
        fetch_codes(after + i);
      }
      store_pairs(to + i, widen_pairs<kCode>(run + i, scales));
    }
  }
  fetch_codes(scales_of(after, head_dim));
}

template <DType kCode>
static void widen_keys(const std::uint8_t* run, const std::uint8_t* after, std::int64_t head_dim, float* to) {
  for (std::int64_t i = 0; i < kKeyTile * head_dim; i += kLanes) {
    if (i % 64 == 0) {
      fetch_codes(after + i);
    }
    const Floats scales = unit_scale<kCode>(load(scales_of(run, head_dim) + i % kKeyTile));
    store(to + i, mul(widen<kCode>(run + i), scales));
  }
  fetch_codes(scales_of(after, head_dim));
}

template <DType kCode>
static void widen_values(const std::uint8_t* run, const std::uint8_t* after, std::int64_t head_dim, float* to) {
  for (std::int64_t slot = 0; slot < kKeyTile; ++slot) {
    const Floats scale = unit_scale<kCode>(set1(scales_of(run, head_dim)[slot]));
    for (std::int64_t i = slot * head_dim; i < (slot + 1) * head_dim; i += kLanes) {
      if (i % 64 == 0) {
        fetch_codes(after + i);
      }
      store(to + i, mul(widen<kCode>(run + i), scale));
    }
  }
  fetch_codes(scales_of(after, head_dim));
}

// A key or value alone, of a cache that is not tiled.
template <typename A, DType kCode>
static void widen_row(const std::uint8_t* codes, float scale, std::int64_t head_dim, A* to) {
  const Floats scales = unit_scale<kCode>(set1(scale));
  for (std::int64_t d = 0; d < head_dim; d += kLanes) {
    store(to + d, mul(widen<kCode>(codes + d), scales));
  }
}

template <typename A>
struct CodeWideners {
  void (*keys)(const std::uint8_t* run, const std::uint8_t* after, std::int64_t head_dim, A* to);
  void (*values)(const std::uint8_t* run, const std::uint8_t* after, std::int64_t head_dim, A* to);
  void (*row)(const std::uint8_t* codes, float scale, std::int64_t head_dim, A* to);
};

template <typename A, DType kCode>
static constexpr CodeWideners<A> kCodeWideners = {&widen_keys<kCode>, &widen_values<kCode>, &widen_row<A, kCode>};

template <typename A>
static const CodeWideners<A>& code_wideners(DType dtype) {
  return dtype == DType::kInt8      ? kCodeWideners<A, DType::kInt8>
         : dtype == DType::kFp8E4M3 ? kCodeWideners<A, DType::kFp8E4M3>
                                    : kCodeWideners<A, DType::kFp8E5M2>;
}

// Rows of a tile that is gathered from a cache of codes.
template <typename A>
struct WidenedRows {
  alignas(64) A keys[kKeyTile][kMaxHeadDim];
  alignas(64) A values[kKeyTile][kMaxHeadDim];
};

// As gather_tiles of attention_tiles.h.
template <typename A>
static void gather_code_tiles(const AttentionProblem<A>& problem, const AttentionWork& work, std::int64_t span,
                              KeyRange keys, WidenedRows<A>& rows, GatheredTiles<A>& room, SpanTiles<A>& found) {
  const CodeWideners<A>& wideners = code_wideners<A>(problem.codes().dtype());
  gather_rows(problem, span, keys, room, found,
              [&](std::int64_t block, std::int64_t slot, std::int64_t in_tile, const A*& key, const A*& value) {
                const CodeRow from = problem.locate_codes(work, block, slot);
                wideners.row(from.key, from.key_scale, problem.head_dim(), rows.keys[in_tile]);
                wideners.row(from.value, from.value_scale, problem.head_dim(), rows.values[in_tile]);
                key = rows.keys[in_tile];
                value = rows.values[in_tile];
              });
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
FASTPAGED_END_TARGET
