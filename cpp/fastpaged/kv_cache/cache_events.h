// CacheEvents: what became of the prefix cache's contents, in order, for whoever follows them from outside: a router,
// or another cache. Who applies all of them to an empty set has exactly what is cached, named by content
// (content_hash.h) and tier.
//
// Kept until they are taken, up to a limit: then the oldest go, and are counted, so that a follower knows that it has
// lost the thread. With a limit of 0 nothing is ever kept, and asking whether there is a limit is all it costs.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "fastpaged/base/types.h"

namespace fastpaged {

enum class Tier : std::uint8_t { kDevice, kHost };

struct CacheEvent {
  enum class Kind : std::uint8_t {
    kStored,   // the content is cached now, in `tier`
    kRemoved,  // it is not any more; `tier`: where it was
    kMoved,    // it is in `tier` now, and in the other one no longer
    kCleared,  // nothing is cached any more
  };
  Kind kind = Kind::kStored;
  Tier tier = Tier::kDevice;
  std::uint64_t hash = 0;                         // of the content; meaningless with kCleared
  std::optional<std::uint64_t> parent_hash = {};  // with kStored: of the block before it; nullopt: it is the first one
  std::int32_t num_tokens = 0;                    // with kStored: that the block holds
  bool operator==(const CacheEvent&) const = default;
};

class CacheEvents {
 public:
  // max_events: kept at a time; 0: none. num_blocks: of the device; ids from there on are the host's.
  // REQUIRES: none of them is negative.
  CacheEvents(std::int64_t max_events, std::int32_t num_blocks, std::int32_t num_host_blocks);

  [[nodiscard]] bool on() const { return max_events_ > 0; }
  // REQUIRES (all of these): on(); the blocks that are named are cached, or were until now.
  // root: of the text that the block begins. parent: the block before it; tokens: its own.
  void stored_first(BlockId block, std::uint64_t root, std::span<const TokenId> tokens);
  void stored(BlockId block, BlockId parent, std::span<const TokenId> tokens);
  void removed(BlockId block);
  void moved(BlockId from, BlockId to);
  void cleared();

  struct Taken {
    std::vector<CacheEvent> events;
    std::int64_t num_dropped = 0;  // that came before these, since the last time
  };
  [[nodiscard]] Taken take();

 private:
  [[nodiscard]] Tier tier_of(BlockId block) const { return block < num_blocks_ ? Tier::kDevice : Tier::kHost; }
  void add(const CacheEvent& event);

  std::int64_t max_events_;
  std::int32_t num_blocks_;
  std::vector<std::uint64_t> hashes_;  // by block, of what is cached; empty if off
  std::deque<CacheEvent> events_;
  std::int64_t num_dropped_ = 0;
};

}  // namespace fastpaged
