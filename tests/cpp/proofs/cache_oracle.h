// CacheOracle: of all that can be found in a prefix cache, whether it is what is really there. And the pins, which hold
// some of it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "fastpaged/scheduler/scheduler.h"
#include "proofs/hashed_kv.h"

namespace fastpaged::test {

class CacheOracle {
 public:
  // REQUIRES: both outlive it.
  CacheOracle(const Scheduler& scheduler, const HashedKV& kv) : scheduler_(&scheduler), kv_(&kv) {}

  // Something may be cached under this root from now on.
  void know_root(const std::string& root) { roots_.insert(root); }
  void pin(PinId id, std::vector<TokenId> tokens, const std::string& root);
  void unpin(PinId id) { pins_.erase(id); }
  [[nodiscard]] const auto& pins() const { return pins_; }

  // in_doubt: nodes whose contents are still to be copied there.
  void check(const std::set<PrefixCache::Node>& in_doubt);
  [[nodiscard]] std::int64_t num_slots_checked() const { return num_slots_checked_; }
  // All tokens up to a cached block's last one, and the root that they stand under.
  [[nodiscard]] std::vector<TokenId> text_of(BlockId block, PrefixCache::Node& root) const;
  [[nodiscard]] std::int64_t num_host_slots_checked() const { return num_host_slots_checked_; }

 private:
  struct Pin {
    std::vector<TokenId> tokens;
    std::string root;
  };

  void check_block(PrefixCache::Node block);
  void check_pins() const;

  const Scheduler* scheduler_;
  const HashedKV* kv_;
  std::set<std::string> roots_;
  std::map<PinId, Pin> pins_;
  std::int64_t num_slots_checked_ = 0;
  std::int64_t num_host_slots_checked_ = 0;  // of them
};

}  // namespace fastpaged::test
