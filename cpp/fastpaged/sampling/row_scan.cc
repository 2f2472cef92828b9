#include "fastpaged/sampling/row_scan.h"

#include <algorithm>
#include <cstdint>

#include "fastpaged/sampling/lanes.h"

namespace fastpaged {
namespace {

struct BlockScan {
  float max;
  bool has_nan;
};

BlockScan scan_block(const float* logits) {
  constexpr int kChains = 4;  // independent, so that a comparison need not wait for the one before
  Lanes max[kChains];
  IntLanes nan[kChains];
  for (int chain = 0; chain < kChains; ++chain) {
    max[chain] = load_lanes(logits + chain * kLanes);
    nan[chain] = max[chain] != max[chain];
  }
  for (int i = kChains * kLanes; i < kLogitBlock; i += kChains * kLanes) {
    for (int chain = 0; chain < kChains; ++chain) {
      const Lanes x = load_lanes(logits + i + chain * kLanes);
      max[chain] = max_lanes(x, max[chain]);
      nan[chain] |= x != x;
    }
  }
  for (int chain = 1; chain < kChains; ++chain) {
    max[0] = max_lanes(max[chain], max[0]);
    nan[0] |= nan[chain];
  }
  BlockScan scan = {max[0][0], nan[0][0] != 0};
  for (int lane = 1; lane < kLanes; ++lane) {
    scan.max = std::max(scan.max, max[0][lane]);
    scan.has_nan |= nan[0][lane] != 0;
  }
  return scan;
}

}  // namespace

void scan_row(const LogitRow& row, RowScan& scan) {
  scan.block_max.resize(static_cast<std::size_t>(row.num_blocks()));
  scan.has_nan = false;
  std::int32_t best_block = 0;
  for (std::int32_t b = 0; b < row.num_blocks(); ++b) {
    const BlockScan block = scan_block(row.block(b));
    scan.has_nan |= block.has_nan;
    scan.block_max[b] = block.max;
    if (block.max > scan.block_max[best_block]) {
      best_block = b;
    }
  }
  scan.max = scan.block_max[best_block];
  scan.argmax = best_block * kLogitBlock;
  while (!scan.has_nan && row[scan.argmax] != scan.max) {
    ++scan.argmax;
  }
}

}  // namespace fastpaged
