// Carries out block copies between the device's KV memory and the host's. On the CPU both are memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fastpaged/base/block_copy.h"

namespace fastpaged {

// Block-major memory of one tier: block b is the bytes [b * block_bytes, (b + 1) * block_bytes).
struct BlockMemory {
  std::byte* data = nullptr;  // may be null with num_blocks 0
  std::int64_t num_blocks = 0;
};

// One after the other, in this order: a later copy may overwrite what an earlier one read. Returns the bytes copied.
// Throws std::invalid_argument, before anything is copied, for a copy outside either memory or one that overlaps
// itself.
std::int64_t copy_blocks(std::span<const BlockCopy> copies, std::int64_t block_bytes, BlockMemory device,
                         BlockMemory host);

}  // namespace fastpaged
