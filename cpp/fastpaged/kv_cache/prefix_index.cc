#include "fastpaged/kv_cache/prefix_index.h"

#include <algorithm>

#include "fastpaged/base/check.h"

namespace fastpaged {

void PrefixIndex::insert(std::uint64_t hash, BlockId block) {
  std::size_t place = home(hash);
  while (!slots_[place].empty()) {
    place = after(place);
  }
  slots_[place] = {hash, block};
  ++size_;
}

std::size_t PrefixIndex::place_of(std::uint64_t hash, BlockId block) const {
  std::size_t place = home(hash);
  while (slots_[place].block != block) {
    invariant(!slots_[place].empty(), "PrefixIndex: a block that is not in the index would be erased");
    place = after(place);
  }
  return place;
}

void PrefixIndex::replace(std::uint64_t hash, BlockId block, BlockId by) {
  slots_[place_of(hash, block)].block = by;
}

void PrefixIndex::erase(std::uint64_t hash, BlockId block) {
  std::size_t hole = place_of(hash, block);
  // No marks of what was erased: whoever stands behind the hole and may stand in it moves there, and leaves a new one.
  for (std::size_t place = after(hole); !slots_[place].empty(); place = after(place)) {
    const std::size_t mask = slots_.size() - 1;
    const std::size_t from_home = (place - home(slots_[place].hash)) & mask;
    const std::size_t from_hole = (place - hole) & mask;
    if (from_home >= from_hole) {
      slots_[hole] = slots_[place];
      hole = place;
    }
  }
  slots_[hole] = {};
  --size_;
}

void PrefixIndex::clear() {
  std::ranges::fill(slots_, Slot{});
  size_ = 0;
}

void PrefixIndex::check_invariants() const {
  std::int32_t num_full = 0;
  for (std::size_t place = 0; place < slots_.size(); ++place) {
    if (slots_[place].empty()) {
      continue;
    }
    ++num_full;
    for (std::size_t i = home(slots_[place].hash); i != place; i = after(i)) {
      invariant(!slots_[i].empty(), "PrefixIndex: a block stands where no lookup comes");
    }
  }
  invariant(num_full == size_, "PrefixIndex: a wrong size");
  invariant(size_ == 0 || 2 * static_cast<std::size_t>(num_full) <= slots_.size(), "PrefixIndex: too full");
}

}  // namespace fastpaged
