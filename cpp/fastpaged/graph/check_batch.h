// The last look at a batch before kernels follow its indices into memory.
#pragma once

#include <cstdint>
#include <limits>

#include "fastpaged/base/batch.h"

namespace fastpaged {

struct BatchLimits {
  std::int64_t num_tokens = 0;
  std::int64_t num_samples = 0;
  std::int64_t vocab_size = std::numeric_limits<std::int64_t>::max();     // rows of the embedding tables
  bool reads_positions = false;                                           // whether there is a table by position
  std::int64_t max_positions = std::numeric_limits<std::int64_t>::max();  // rows of the rotary and position tables
  std::int64_t num_blocks = 0;  // of the KV cache; 0 for a graph without attention
  std::int64_t block_size = 0;
};

// Throws std::invalid_argument naming the array, the value and the bound: sizes that disagree with one another or
// exceed the limits, and any index that would leave its table. Linear in the size of the arrays; allocates nothing.
void check_batch(const Batch& batch, const BatchLimits& limits);

}  // namespace fastpaged
