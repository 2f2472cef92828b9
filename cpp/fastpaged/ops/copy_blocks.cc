#include "fastpaged/ops/copy_blocks.h"

#include <cstring>
#include <string>

#include "fastpaged/base/check.h"

namespace fastpaged {

namespace {

struct Ends {
  const BlockMemory* from;
  const BlockMemory* to;
};

Ends ends_of(CopyKind kind, const BlockMemory& device, const BlockMemory& host) {
  switch (kind) {
    case CopyKind::kSwapOut:
      return {&device, &host};
    case CopyKind::kSwapIn:
      return {&host, &device};
    case CopyKind::kCopyOnWrite:
      return {&device, &device};
  }
  throw_invariant("copy_blocks: an unknown kind of copy", std::source_location::current());
}

void require_inside(const char* name, BlockId first, std::int32_t num_blocks, const BlockMemory& memory) {
  require(first >= 0 && num_blocks > 0 && std::int64_t{first} + num_blocks <= memory.num_blocks, [&] {
    return std::string("copies: ") + name + " must be blocks in [0, " + std::to_string(memory.num_blocks) + "), got " +
           std::to_string(num_blocks) + " from " + std::to_string(first);
  });
}

void require_valid(const BlockCopy& copy, const Ends& ends) {
  require_inside("source", copy.source, copy.num_blocks, *ends.from);
  require_inside("destination", copy.destination, copy.num_blocks, *ends.to);
  const std::int64_t distance = std::int64_t{copy.destination} - copy.source;
  const bool apart = ends.from != ends.to || distance >= copy.num_blocks || -distance >= copy.num_blocks;
  require(apart, [&] {
    return "copies: source and destination must not overlap, got " + std::to_string(copy.num_blocks) + " blocks from " +
           std::to_string(copy.source) + " to " + std::to_string(copy.destination);
  });
}

}  // namespace

std::int64_t copy_blocks(std::span<const BlockCopy> copies, std::int64_t block_bytes, BlockMemory device,
                         BlockMemory host) {
  require(block_bytes > 0, [&] { return "block_bytes must be > 0, got " + std::to_string(block_bytes); });
  for (const BlockCopy& copy : copies) {
    require_valid(copy, ends_of(copy.kind, device, host));
  }
  std::int64_t num_bytes = 0;
  for (const BlockCopy& copy : copies) {
    const Ends ends = ends_of(copy.kind, device, host);
    const std::int64_t run = copy.num_blocks * block_bytes;
    std::memcpy(ends.to->data + copy.destination * block_bytes, ends.from->data + copy.source * block_bytes,
                static_cast<std::size_t>(run));
    num_bytes += run;
  }
  return num_bytes;
}

}  // namespace fastpaged
