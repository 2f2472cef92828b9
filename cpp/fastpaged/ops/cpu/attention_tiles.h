// Tiles of keys and values of paged attention where the cache does not hold them as tiles: gathered into the order of
// KVLayout, so that all arithmetic is the same.
#pragma once

#include <cstdint>
#include <cstring>

#include "fastpaged/ops/cpu/attention_problem.h"
#include "fastpaged/ops/cpu/vector.h"
#include "fastpaged/ops/validate.h"

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)
namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

// Room for the tiles of a span.
template <typename A>
struct GatheredTiles {
  alignas(64) A keys[kSpan * kMaxHeadDim];
  alignas(64) A values[kSpan * kMaxHeadDim];
  alignas(64) A nothing[kMaxHeadDim];  // zeros, in place of keys and values that nobody sees
};

// One tile: its elements move in units of 32 bits, one float or two neighbouring bfloat16.
template <typename A>
static void gather_keys(const A* const (&rows)[kKeyTile], std::int64_t head_dim, A* tile) {
  const std::int64_t num_units = head_dim * static_cast<std::int64_t>(sizeof(A)) / 4;
  auto* to = reinterpret_cast<float*>(tile);
  for (std::int64_t first = 0; first < kKeyTile; first += kLanes) {
    for (std::int64_t u = 0; u < num_units; u += kLanes) {
      const std::int64_t count = num_units - u < kLanes ? num_units - u : kLanes;
      Floats units[kLanes];
      for (std::int64_t i = 0; i < kLanes; ++i) {
        units[i] = load(reinterpret_cast<const float*>(rows[first + i]) + u, count);
      }
      transpose(units);
      for (std::int64_t i = 0; i < count; ++i) {
        store(to + (u + i) * kKeyTile + first, units[i]);
      }
    }
  }
}

template <typename A>
static void gather_values(const A* const (&rows)[kKeyTile], std::int64_t head_dim, A* tile) {
  if constexpr (KVLayout<A>::kInPairs) {
    for (std::int64_t slot = 0; slot < kKeyTile; slot += 2, tile += 2 * head_dim) {
      for (std::int64_t d = 0; d < head_dim; d += kLanes) {
        store_pairs(tile + 2 * d, pair_up(load(rows[slot] + d), load(rows[slot + 1] + d)));
      }
    }
  } else {
    for (std::int64_t slot = 0; slot < kKeyTile; ++slot, tile += head_dim) {
      std::memcpy(tile, rows[slot], static_cast<std::size_t>(head_dim) * sizeof(A));
    }
  }
}

// The tiles of a span that the keys lie in, for a cache that is not tiled. locate(block, slot, in_tile, key, value)
// finds the key and value at a slot of the sequence's block number `block`.
template <typename A, typename Locate>
static void gather_rows(const AttentionProblem<A>& problem, std::int64_t span, KeyRange keys, GatheredTiles<A>& room,
                        SpanTiles<A>& found, const Locate& locate) {
  const KeyRange tiles = tiles_of(keys);
  const std::int64_t tile_size = kKeyTile * problem.head_dim();
  const std::int64_t block_size = problem.order().block_size();
  std::int64_t block = (span * kSpan + keys.begin) / block_size;
  std::int64_t in_block = (span * kSpan + keys.begin) % block_size;
  for (std::int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    const A* key_rows[kKeyTile];
    const A* value_rows[kKeyTile];
    for (std::int64_t slot = 0; slot < kKeyTile; ++slot) {
      const std::int64_t key = tile * kKeyTile + slot;
      key_rows[slot] = value_rows[slot] = room.nothing;
      if (key >= keys.begin && key < keys.end) {
        locate(block, in_block, slot, key_rows[slot], value_rows[slot]);
        if (++in_block == block_size) {
          in_block = 0;
          ++block;
        }
      }
    }
    gather_keys(key_rows, problem.head_dim(), room.keys + tile * tile_size);
    gather_values(value_rows, problem.head_dim(), room.values + tile * tile_size);
    found.keys[tile] = room.keys + tile * tile_size;
    found.values[tile] = room.values + tile * tile_size;
  }
}

template <typename A>
static void gather_tiles(const AttentionProblem<A>& problem, const AttentionWork& work, std::int64_t span,
                         KeyRange keys, GatheredTiles<A>& room, SpanTiles<A>& found) {
  gather_rows(problem, span, keys, room, found,
              [&](std::int64_t block, std::int64_t slot, std::int64_t /*in_tile*/, const A*& key, const A*& value) {
                problem.locate_row(work, block, slot, key, value);
              });
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
FASTPAGED_END_TARGET
