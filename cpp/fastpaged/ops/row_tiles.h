// RowTiles: rows cut into tiles of work. The cut depends on the shape alone.
#pragma once

#include <algorithm>
#include <cstdint>

namespace fastpaged {

struct RowTiles {
  std::int64_t num_rows;
  std::int64_t rows_per_tile;

  // Tiles of about `elements` elements: large enough to be worth handing to a thread.
  static RowTiles of_size(std::int64_t num_rows, std::int64_t row_size, std::int64_t elements = 16384) {
    return {num_rows, std::max<std::int64_t>(1, elements / std::max<std::int64_t>(1, row_size))};
  }

  [[nodiscard]] std::int64_t count() const { return (num_rows + rows_per_tile - 1) / rows_per_tile; }
  [[nodiscard]] std::int64_t begin(std::int64_t tile) const { return tile * rows_per_tile; }
  [[nodiscard]] std::int64_t end(std::int64_t tile) const { return std::min(num_rows, (tile + 1) * rows_per_tile); }
};

}  // namespace fastpaged
