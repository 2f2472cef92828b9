// TileFetcher: has the tiles that attention is about to read fetched from memory while it still computes. No
// arithmetic.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fastpaged/ops/cpu/attention_problem.h"

namespace fastpaged::cpu {

// A span of a work item; work null: none.
struct SpanPlace {
  const AttentionWork* work;
  std::int64_t span;

  bool operator==(const SpanPlace&) const = default;
};

// T: see SpanTiles.
template <typename T>
class TileFetcher {
 public:
  // The keys of `tiles` are read next, then their values, then most likely the keys at `next`. Sets what is fetched
  // beside each tile of `found`, which is how to fetch if not by fetch(). REQUIRES: a tiled cache.
  template <typename A>
  void begin_span(const AttentionProblem<A>& problem, SpanPlace place, KeyRange tiles, SpanPlace next,
                  SpanTiles<T>& found) {
    tile_bytes_ = problem.template tile_size<T>() * static_cast<std::int64_t>(sizeof(T));
    const T** end = std::copy(found.keys + tiles.begin, found.keys + tiles.end, order_);
    end = std::copy(found.values + tiles.begin, found.values + tiles.end, end);
    at_ = order_ + (place == expected_ ? fetched_ : 0);
    fetched_ = 0;
    expected_ = next;
    if (next.work != nullptr) {
      const KeyRange all = tiles_of(problem.keys_of_work(*next.work, next.span));
      const KeyRange first{all.begin, std::min(all.end, all.begin + kAhead)};
      SpanTiles<T> found_next;
      problem.locate_tiles(*next.work, next.span, first, found_next);
      end = std::copy(found_next.keys + first.begin, found_next.keys + first.end, end);
      fetched_ = first.end - first.begin;
    }
    end_ = end;
    fetch(order_ + kAhead - at_);
    set_after(tiles, found);
  }

  // The next `count` tiles.
  void fetch(std::int64_t count) {
    for (; count > 0 && at_ < end_; --count, ++at_) {
      const auto* const tile = reinterpret_cast<const char*>(*at_);
      for (std::int64_t line = 0; line < tile_bytes_; line += 64) {
        __builtin_prefetch(tile + line, 0, 2);
      }
    }
  }

 private:
  static constexpr std::int64_t kAhead = 4;  // tiles

  // Where nothing follows, tiles are fetched again, which costs nothing.
  void set_after(KeyRange tiles, SpanTiles<T>& found) {
    const std::int64_t count = tiles.end - tiles.begin;
    for (std::int64_t i = 0; i < count; ++i) {
      found.after_keys[tiles.begin + i] = after(order_ + i);
      found.after_values[tiles.begin + i] = after(order_ + count + i);
    }
  }
  [[nodiscard]] const T* after(const T* const* tile) const { return tile + kAhead < end_ ? tile[kAhead] : *tile; }

  const T* order_[2 * kTilesPerSpan + kAhead];
  const T** at_ = nullptr;
  const T** end_ = nullptr;
  SpanPlace expected_{nullptr, 0};
  std::int64_t fetched_ = 0;  // of the tiles of the span that is expected
  std::int64_t tile_bytes_ = 0;
};

}  // namespace fastpaged::cpu
