// for_each_tile: parallel_for with the rounding and denormal modes the kernels are written for, whatever the calling
// thread had set: round to nearest even, denormals read as zero and flushed to zero, no traps.
#pragma once

#include <xmmintrin.h>

#include <cstdint>

#include "fastpaged/base/thread_pool.h"
#include "fastpaged/ops/row_tiles.h"

namespace fastpaged::cpu {

class KernelFloatMode {
 public:
  KernelFloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(kMode); }
  ~KernelFloatMode() { _mm_setcsr(saved_); }
  KernelFloatMode(const KernelFloatMode&) = delete;
  KernelFloatMode& operator=(const KernelFloatMode&) = delete;

 private:
  static constexpr unsigned kMode =
      0x1F80U | 0x8000U | 0x0040U;  // exceptions masked, flush to zero, denormals are zero
  unsigned saved_;
};

template <typename Fn>
void for_each_tile(ThreadPool& pool, std::int64_t num_tiles, const Fn& fn) {
  pool.parallel_for(num_tiles, [&](std::int64_t tile, int) {
    const KernelFloatMode mode;
    fn(tile);
  });
}

// fn(row) for each of num_rows rows of row_size elements, in tiles of several.
template <typename Fn>
void for_each_row(ThreadPool& pool, std::int64_t num_rows, std::int64_t row_size, const Fn& fn) {
  const RowTiles tiles = RowTiles::of_size(num_rows, row_size);
  for_each_tile(pool, tiles.count(), [&](std::int64_t tile) {
    for (std::int64_t row = tiles.begin(tile); row < tiles.end(tile); ++row) {
      fn(row);
    }
  });
}

}  // namespace fastpaged::cpu
