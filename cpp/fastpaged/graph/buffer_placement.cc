#include "fastpaged/graph/buffer_placement.h"

#include <algorithm>
#include <numeric>

namespace fastpaged {
namespace {

std::size_t round_up(std::size_t num_bytes, std::size_t alignment) {
  return (num_bytes + alignment - 1) / alignment * alignment;
}

struct Taken {
  std::size_t begin;
  std::size_t end;
};

// The lowest offset with num_bytes free; taken is sorted by begin and may overlap itself.
std::size_t first_fit(std::span<const Taken> taken, std::size_t num_bytes) {
  std::size_t offset = 0;
  for (const Taken& range : taken) {
    if (offset + num_bytes <= range.begin) {
      break;
    }
    offset = std::max(offset, range.end);
  }
  return offset;
}

}  // namespace

Placement place_buffers(std::span<const Lifetime> lifetimes, std::size_t alignment) {
  std::vector<std::size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return lifetimes[a].num_bytes > lifetimes[b].num_bytes; });

  Placement placement{std::vector<std::size_t>(lifetimes.size(), 0), 0};
  std::vector<Taken> taken;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Lifetime& lifetime = lifetimes[order[i]];
    taken.clear();
    for (std::size_t j = 0; j < i; ++j) {
      const Lifetime& other = lifetimes[order[j]];
      if (alive_together(lifetime, other)) {
        const std::size_t begin = placement.offsets[order[j]];
        taken.push_back({begin, begin + round_up(other.num_bytes, alignment)});
      }
    }
    std::sort(taken.begin(), taken.end(), [](const Taken& a, const Taken& b) { return a.begin < b.begin; });
    const std::size_t num_bytes = round_up(lifetime.num_bytes, alignment);
    const std::size_t offset = first_fit(taken, num_bytes);
    placement.offsets[order[i]] = offset;
    placement.num_bytes = std::max(placement.num_bytes, offset + num_bytes);
  }
  return placement;
}

}  // namespace fastpaged
