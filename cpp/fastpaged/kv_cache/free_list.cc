#include "fastpaged/kv_cache/free_list.h"

#include "fastpaged/base/check.h"

namespace fastpaged {

FreeList::FreeList(std::int32_t num_ids)
    : end_(static_cast<std::size_t>(num_ids)), size_(num_ids), next_(end_ + 1), prev_(end_ + 1) {
  for (BlockId id = 0; id < num_ids; ++id) {
    next_[id] = id + 1;
    prev_[id + std::size_t{1}] = id;
  }
  next_[end_] = 0;  // of an empty list: the end itself
  prev_[0] = num_ids;
}

void FreeList::remove(BlockId id) {
  next_[prev_[id]] = next_[id];
  prev_[next_[id]] = prev_[id];
  --size_;
}

void FreeList::insert_before(BlockId place, BlockId id) {
  next_[id] = place;
  prev_[id] = prev_[place];
  next_[prev_[place]] = id;
  prev_[place] = id;
  ++size_;
}

std::vector<BlockId> FreeList::ids() const {
  std::vector<BlockId> ids;
  ids.reserve(size_);
  for (BlockId id = next_[end_]; id != static_cast<BlockId>(end_); id = next_[id]) {
    ids.push_back(id);
  }
  return ids;
}

std::vector<BlockId> FreeList::reachable_ids() const {
  const auto end = static_cast<BlockId>(end_);
  std::vector<bool> seen(end_, false);
  std::vector<BlockId> ids;
  for (BlockId id = next_[end_]; id >= 0 && id < end && !seen[id]; id = next_[id]) {
    seen[id] = true;
    ids.push_back(id);
  }
  return ids;
}

void FreeList::assign(std::span<const BlockId> ids) {
  size_ = 0;
  next_[end_] = static_cast<BlockId>(end_);
  prev_[end_] = static_cast<BlockId>(end_);
  for (const BlockId id : ids) {
    push_back(id);
  }
}

void FreeList::check_invariants() const {
  const auto end = static_cast<BlockId>(end_);
  BlockId id = end;
  for (std::int32_t i = 0; i <= size_; ++i) {  // once around, the end included
    const BlockId next = next_[id];
    invariant(next >= 0 && next <= end, "FreeList: an unknown id is on the list");
    invariant(prev_[next] == id, "FreeList: two neighbours disagree");
    invariant((next == end) == (i == size_), "FreeList: the list is not as long as its size");
    id = next;
  }
}

}  // namespace fastpaged
