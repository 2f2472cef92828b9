#include "fastpaged/sampling/row_scan.h"

#include <cstdint>

namespace fastpaged {

void scan_row(const LogitRow& row, RowScan& scan) {
  scan.block_max.resize(static_cast<std::size_t>(row.num_blocks()));
  const std::int32_t last = row.num_blocks() - 1;
  const auto block_maxima = row.passes().block_maxima;
  const bool nan_before = block_maxima(row.data(), last, scan.block_max.data());
  scan.has_nan = block_maxima(row.block(last), 1, &scan.block_max[last]) || nan_before;
  std::int32_t best_block = 0;
  for (std::int32_t b = 1; b <= last; ++b) {
    best_block = scan.block_max[b] > scan.block_max[best_block] ? b : best_block;
  }
  scan.max = scan.block_max[best_block];
  scan.argmax = best_block * kLogitBlock;
  while (!scan.has_nan && row[scan.argmax] != scan.max) {
    ++scan.argmax;
  }
}

}  // namespace fastpaged
