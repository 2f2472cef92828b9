// RowScan: the one pass over the logits that every row needs.
#pragma once

#include <vector>

#include "fastpaged/base/types.h"
#include "fastpaged/sampling/logit_row.h"

namespace fastpaged {

struct RowScan {
  float max = 0.0F;
  TokenId argmax = 0;            // the smallest id that has the maximum
  bool has_nan = false;          // then nothing else here means anything
  std::vector<float> block_max;  // [row.num_blocks()]
};

// Fills `scan`, whose memory is reused.
void scan_row(const LogitRow& row, RowScan& scan);

}  // namespace fastpaged
