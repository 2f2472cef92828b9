#include "fastpaged/kv_cache/copy_list.h"

namespace fastpaged {

namespace {

// Whether source and destination would be one run of memory with `copy`, still without overlap inside one pool.
bool continues(const BlockCopy& copy, CopyKind kind, BlockId source, BlockId destination) {
  const std::int32_t n = copy.num_blocks;
  if (copy.kind != kind || source != copy.source + n || destination != copy.destination + n) {
    return false;
  }
  const std::int32_t distance = destination > source ? destination - source : source - destination;
  return kind != CopyKind::kCopyOnWrite || distance > n;
}

}  // namespace

void CopyList::add(CopyKind kind, BlockId source, BlockId destination) {
  ++num_blocks_;
  if (!copies_.empty() && continues(copies_.back(), kind, source, destination)) {
    ++copies_.back().num_blocks;
  } else {
    copies_.push_back({kind, source, destination, 1});
  }
}

}  // namespace fastpaged
