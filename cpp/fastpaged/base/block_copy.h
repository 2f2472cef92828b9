// BlockCopy: "these neighbouring blocks go there". A list of them, run in order before a step's forward pass, is all
// that planning tells computing beside the Batch.
#pragma once

#include <cstdint>

#include "fastpaged/base/types.h"

namespace fastpaged {

enum class CopyKind : std::uint8_t {
  kSwapOut,      // device -> host
  kSwapIn,       // host -> device
  kCopyOnWrite,  // device -> device
};

// Blocks source, source + 1, ... go to destination, destination + 1, ...; within one copy the two never overlap.
struct BlockCopy {
  CopyKind kind = CopyKind::kCopyOnWrite;
  BlockId source = 0;
  BlockId destination = 0;
  std::int32_t num_blocks = 0;  // > 0

  bool operator==(const BlockCopy&) const = default;
};

}  // namespace fastpaged
