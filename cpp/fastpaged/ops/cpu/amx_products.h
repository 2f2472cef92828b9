// Products of matrices whose left rows are laid out for tiles: C = A * B, over a set of tile registers (amx_tile.h),
// two tiles of rows by two columns of 16 or one by four:
//
//          B0 (6)   B1 (7)                B0 (6)   B1 (7)   B2 (6)   B3 (7)
//   A0 (4) C00 (0)  C01 (1)        A0 (4) C00 (0)  C01 (1)  C02 (2)  C03 (3)
//   A1 (5) C10 (2)  C11 (3)
//
// All tiles of rows are equally high, so that one configuration serves every product of as many rows. An element of C
// takes its tiles of 32 k in order, whatever is computed beside it.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "fastpaged/base/tensor_view.h"
#include "fastpaged/ops/cpu/amx_tile.h"

namespace fastpaged::cpu {

constexpr std::int64_t kAmxDepth = 32;  // k of a tile, in bfloat16

// How rows are shared out to tiles; the last may be filled up with rows that nobody needs.
struct AmxRows {
  std::int64_t height;  // rows of each tile, 1..16
  std::int64_t num_tiles;

  static constexpr AmxRows of(std::int64_t num_rows) {
    const std::int64_t num_tiles = (num_rows + kTileRows - 1) / kTileRows;
    return {(num_rows + num_tiles - 1) / num_tiles, num_tiles};
  }
};

// One thread's tiles, configured anew only where the height changes: that costs as much as a dozen products.
template <typename Tiles>
class AmxRegisters {
 public:
  Tiles& of_height(std::int64_t height) {
    if (height != height_) {
      height_ = height;
      const auto rows = static_cast<std::uint8_t>(height);
      tiles_.configure({rows, rows, rows, rows, rows, rows, kTileRows, kTileRows});
    }
    return tiles_;
  }

 private:
  Tiles tiles_;
  std::int64_t height_ = 0;
};

// fn of each of 0, ..., kCount - 1 as a constant.
template <int kCount, typename Fn>
void for_each_constant(const Fn& fn) {
  [&]<int... kNumbers>(std::integer_sequence<int, kNumbers...>) {
    (fn(std::integral_constant<int, kNumbers>{}), ...);
  }(std::make_integer_sequence<int, kCount>{});
}

// A matrix [rows][stride]; stride in elements.
template <typename T>
struct AmxMatrix {
  T* data;
  std::int64_t stride;

  [[nodiscard]] std::int64_t stride_bytes() const { return stride * static_cast<std::int64_t>(sizeof(T)); }
};

struct AmxSteps {  // tiles of k
  std::int64_t begin;
  std::int64_t end;
};

// c [kRowTiles * height][kColumns * 16] = a [kRowTiles * height][k] * b. find(step, column): where the tile of b lies,
// 16 rows of 64 bytes, b_stride bytes apart. REQUIRES: tiles are configured for the height.
template <int kRowTiles, int kColumns, typename Tiles, typename Find>
void amx_multiply(Tiles& tiles, std::int64_t height, AmxMatrix<const BFloat16> a, AmxSteps steps, const Find& find,
                  std::int64_t b_stride, AmxMatrix<float> c) {
  for_each_constant<kRowTiles * kColumns>([&](auto sums) { tiles.template zero<sums()>(); });
  for (std::int64_t step = steps.begin; step < steps.end; ++step) {
    for_each_constant<kRowTiles>([&](auto row) {
      tiles.template load<4 + row()>(a.data + row() * height * a.stride + step * kAmxDepth, a.stride_bytes());
    });
    for_each_constant<kColumns>([&](auto column) {
      constexpr int kB = 6 + column() % 2;
      tiles.template load<kB>(find(step, std::int64_t{column()}), b_stride);
      for_each_constant<kRowTiles>([&](auto row) { tiles.template dot<row() * kColumns + column(), 4 + row(), kB>(); });
    });
  }
  for_each_constant<kRowTiles>([&](auto row) {
    for_each_constant<kColumns>([&](auto column) {
      tiles.template store<row() * kColumns + column()>(c.data + row() * height * c.stride + column() * 16,
                                                        c.stride_bytes());
    });
  });
}

// Columns [column, end) of kRowTiles tiles of rows; find(step, column) as above, from column 0 on.
template <int kRowTiles, int kColumns, typename Tiles, typename Find>
void amx_multiply_columns(Tiles& tiles, std::int64_t height, AmxMatrix<const BFloat16> a, AmxSteps steps,
                          const Find& find, std::int64_t b_stride, AmxMatrix<float> c, std::int64_t column,
                          std::int64_t end) {
  for (; column + kColumns <= end; column += kColumns) {
    const auto from_here = [&](std::int64_t step, std::int64_t beside) { return find(step, column + beside); };
    amx_multiply<kRowTiles, kColumns>(tiles, height, a, steps, from_here, b_stride, {c.data + column * 16, c.stride});
  }
  if constexpr (kColumns > 1) {
    amx_multiply_columns<kRowTiles, kColumns / 2>(tiles, height, a, steps, find, b_stride, c, column, end);
  }
}

// All tiles of rows.
template <typename Tiles, typename Find>
void amx_multiply_rows(Tiles& tiles, AmxRows rows, AmxMatrix<const BFloat16> a, AmxSteps steps, const Find& find,
                       std::int64_t b_stride, AmxMatrix<float> c, std::int64_t column, std::int64_t end) {
  std::int64_t tile = 0;
  for (; tile + 2 <= rows.num_tiles; tile += 2) {
    const std::int64_t row = tile * rows.height;
    amx_multiply_columns<2, 2>(tiles, rows.height, {a.data + row * a.stride, a.stride}, steps, find, b_stride,
                               {c.data + row * c.stride, c.stride}, column, end);
  }
  if (tile < rows.num_tiles) {
    const std::int64_t row = tile * rows.height;
    amx_multiply_columns<1, 4>(tiles, rows.height, {a.data + row * a.stride, a.stride}, steps, find, b_stride,
                               {c.data + row * c.stride, c.stride}, column, end);
  }
}

}  // namespace fastpaged::cpu
