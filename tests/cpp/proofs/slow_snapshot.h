// SlowSnapshot: what a KVSnapshot has to say, slot by slot and holder by holder, counted from block tables in the most
// obvious way; and what blocks' ages and the cache's events may be, by having watched.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "proofs/fake_engine.h"

namespace fastpaged::test {

class SlowSnapshot {
 public:
  // Of all snapshots there ever were: the same text in blocks of the same size has the same name, and no other has it.
  using Names = std::map<std::tuple<std::int32_t, std::string, std::vector<TokenId>>, std::uint64_t>;

  SlowSnapshot(FakeEngine& engine, Names& names) : engine_(&engine), names_(&names) {}

  // plan: the one that is out.
  void check(const std::optional<SchedulerOutput>& plan);

  std::int64_t num_reserved = 0;  // slots, of all checks
  std::int64_t num_on_host = 0;   // slots that held a token there, of all checks
  std::int64_t num_pinned = 0;    // slots, of all checks
  std::int64_t num_events = 0;

 private:
  using Place = std::pair<Tier, BlockId>;
  enum class Slot : std::uint8_t { kNothing, kToken, kReserved };
  struct Held {
    std::vector<BlockHolder> holders;
    std::vector<Slot> slots;
    bool pinned = false;
  };

  void look(const std::optional<SchedulerOutput>& plan);
  void look_at_pins();
  void look_at(GroupId id);
  Held& held(Tier tier, BlockId block);
  void check_tier(const TierUse& use, Tier tier);
  void check_bills(const KVSnapshot& snapshot) const;
  void check_bill(const BlockBill& bill, const std::vector<SequenceId>& owners) const;
  void check_ages(const KVSnapshot& snapshot);
  void check_name(const BlockUse& use, PrefixCache::Node node);
  void check_events(const KVSnapshot& snapshot);

  FakeEngine* engine_;
  Names* names_;
  std::map<Place, Held> held_;  // of now
  std::map<PinId, std::vector<BlockId>> pins_;
  std::map<Place, std::pair<std::uint64_t, std::vector<BlockHolder>>> last_seen_;  // when last used, and by whom held
  std::map<std::uint64_t, Tier> followed_;                                         // by content, from events alone
};

}  // namespace fastpaged::test
