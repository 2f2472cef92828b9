// Where each buffer lies in the arena: buffers that are never alive together may share bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fastpaged {

// A buffer is alive from the node that first writes it to the last one that mentions it, both included:
// no op has to tolerate an output that overlaps its inputs.
struct Lifetime {
  std::int32_t first = 0;
  std::int32_t last = 0;
  std::size_t num_bytes = 0;
};

constexpr bool alive_together(const Lifetime& a, const Lifetime& b) {
  return a.first <= b.last && b.first <= a.last;
}

struct Placement {
  std::vector<std::size_t> offsets;  // one per lifetime, multiples of the alignment
  std::size_t num_bytes = 0;         // of the arena
};

// Largest first, each at the lowest offset where it meets no placed buffer alive at the same time.
// REQUIRES: alignment > 0.
Placement place_buffers(std::span<const Lifetime> lifetimes, std::size_t alignment);

}  // namespace fastpaged
