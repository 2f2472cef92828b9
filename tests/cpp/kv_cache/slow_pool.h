// SlowPool: BlockPool said plainly. Who holds a block is a set of owners.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fastpaged/base/types.h"

namespace fastpaged::test {

struct SlowPool {
  SlowPool(std::string its_name, std::int32_t num_blocks) : name(std::move(its_name)), size(num_blocks) {
    for (BlockId block = 0; block < num_blocks; ++block) {
      free.push_back(block);
    }
  }

  [[nodiscard]] std::int32_t num_free() const { return static_cast<std::int32_t>(free.size()); }
  [[nodiscard]] bool shared(BlockId block) const { return holders.at(block).size() > 1; }

  BlockId take(SequenceId owner) {
    const BlockId block = free.at(0);
    free.erase(free.begin());
    share(block, owner);
    return block;
  }
  void share(BlockId block, SequenceId owner) {
    holders[block].insert(owner);
    last_owner[block] = owner;
  }
  void give(BlockId block, SequenceId owner) {
    last_owner[block] = owner;
    holders.at(block).erase(owner);
    if (holders.at(block).empty()) {
      holders.erase(block);
      free.insert(cached.contains(block) ? free.end() : free.begin(), block);
    }
  }

  void take_cached(BlockId block, SequenceId owner) {
    std::erase(free, block);
    share(block, owner);
  }
  // A free block that has come to hold nothing is the next to be handed out.
  void put_first(BlockId block) {
    if (std::erase(free, block) > 0) {
      free.insert(free.begin(), block);
    }
  }
  // These hold nothing any more. What is free of them stays in its order, and comes first.
  void uncache(const std::set<BlockId>& gone) {
    std::stable_partition(free.begin(), free.end(), [&](BlockId block) { return gone.contains(block); });
    for (const BlockId block : gone) {
      cached.erase(block);
    }
  }

  // What the pool must say to somebody who uses a block that nobody holds.
  [[nodiscard]] std::string refusal(BlockId block, SequenceId owner, const std::string& operation) const {
    if (block < 0 || block >= size) {
      return "block " + std::to_string(block) + " is unknown: the " + name + " pool has " + std::to_string(size) +
             " blocks";
    }
    const auto last = last_owner.find(block);
    return "sequence " + std::to_string(owner) + " cannot " + operation + " block " + std::to_string(block) +
           " of the " + name + " pool: it is free, " +
           (last == last_owner.end() ? "never allocated"
                                     : "last given back by sequence " + std::to_string(last->second));
  }

  std::string name;
  std::int32_t size;
  std::vector<BlockId> free;                        // the next to be handed out first
  std::map<BlockId, std::set<SequenceId>> holders;  // of the blocks that are not free
  std::map<BlockId, SequenceId> last_owner;
  std::set<BlockId> cached;  // that hold something to be found
};

}  // namespace fastpaged::test
