// HostCopies: which block of the host has been given the contents of which cached block of the device. It only takes
// notes: whether one still holds (the host block is held since, the device's holds the same entry) is for the
// KVCacheManager to see.
#pragma once

#include <cstdint>
#include <vector>

#include "fastpaged/base/types.h"

namespace fastpaged {

class HostCopies {
 public:
  static constexpr BlockId kNone = -1;

  // REQUIRES: both >= 0.
  HostCopies(std::int32_t num_blocks, std::int32_t num_host_blocks)
      : notes_(static_cast<std::size_t>(num_host_blocks)), hosts_(static_cast<std::size_t>(num_blocks), kNone) {}

  struct Note {
    BlockId device = kNone;
    std::uint64_t entry = 0;  // that the device's block held; 0: there is no note
  };
  void add(BlockId host, BlockId device, std::uint64_t entry) {
    notes_[host] = {device, entry};
    hosts_[device] = host;
  }
  void forget(BlockId host) { notes_[host] = {}; }
  [[nodiscard]] const Note& of(BlockId host) const { return notes_[host]; }
  // The host block that was noted last for this one; kNone if none ever was.
  [[nodiscard]] BlockId host_of(BlockId device) const { return hosts_[device]; }

 private:
  std::vector<Note> notes_;     // by host block
  std::vector<BlockId> hosts_;  // by device block
};

}  // namespace fastpaged
