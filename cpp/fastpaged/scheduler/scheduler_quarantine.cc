// After a broken invariant: who it concerns fails, its blocks are used no more, and all others go on.
#include <algorithm>
#include <iterator>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

#include "fastpaged/base/check.h"
#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged {

namespace {

bool has_fault(const std::vector<BlockFault>& faults, BlockId block) {
  return std::ranges::any_of(faults, [&](const BlockFault& fault) { return fault.block == block; });
}

void count(std::span<const BlockId> blocks, std::vector<std::int32_t>& holders) {
  for (const BlockId block : blocks) {
    if (block >= 0 && std::cmp_less(block, holders.size())) {
      ++holders[block];
    }
  }
}

}  // namespace

Quarantine Scheduler::quarantine() {
  const Holders holders = count_holders();
  const KVCacheManager::Faults faults = kv_cache_.faults(holders.on_device, holders.on_host);
  find_broken_groups(faults);
  find_broken_plans();
  std::ranges::sort(broken_, {}, &Broken::id);
  Quarantine quarantine;
  for (const std::vector<BlockFault>* tier : {&faults.on_device, &faults.on_host}) {
    std::ranges::transform(*tier, std::back_inserter(quarantine.found), &BlockFault::what);
  }
  if (!faults.of_cache.empty()) {
    quarantine.found.push_back(faults.of_cache);
  }
  for (const Broken& broken : broken_) {
    quarantine.found.push_back("group " + std::to_string(broken.id) + ": " + broken.what);
  }
  if (!all_released()) {
    quarantine.found.emplace_back(kRefusedRelease);
  }
  if (count_running_sequences() != num_running_sequences_) {
    quarantine.found.emplace_back(kLostRunning);
  }
  if (quarantine.found.empty()) {
    return quarantine;
  }
  kv_cache_.quarantine(faults);  // first: from then on any table can be given back
  pins_.release_if([&](BlockId block) { return has_fault(faults.on_device, block); });
  pins_.give_up_uncached();
  put_in_order();
  quarantine.events = std::exchange(spared_events_, {});
  for (const Broken& broken : std::exchange(broken_, {})) {
    if (const auto found = groups_.find(broken.id); found != groups_.end()) {
      quarantine.failed.push_back(broken.id);
      remove(found->second);
    }
  }
  const std::vector<BlockCopy> pending = kv_cache_.take_copies();  // of a schedule() that threw
  plan_copies_.insert(plan_copies_.end(), pending.begin(), pending.end());
  distrust_copies();
  plan_.spend();
  for (auto& [id, group] : groups_) {  // what the pool has become too small for ends at its ceiling
    if (group.state == GroupState::kSwapped && num_held_blocks(group) > kv_cache_.num_usable_blocks()) {
      group.forget_computed(kv_cache_);
      change_state(group, GroupState::kWaiting);
    }
  }
  num_refused_releases_ = kv_cache_.num_refused_releases();
  return quarantine;
}

std::int32_t Scheduler::num_quarantined_blocks() const {
  return kv_cache_.device_pool().num_quarantined() + kv_cache_.host_pool().num_quarantined();
}

bool Scheduler::is_broken(GroupId id) const {
  return std::ranges::any_of(broken_, [&](const Broken& broken) { return broken.id == id; });
}

// By the pool that a table belongs to, whatever state its group is in.
Scheduler::Holders Scheduler::count_holders() const {
  Holders holders;
  holders.on_device.assign(kv_cache_.num_blocks(), 0);
  holders.on_host.assign(kv_cache_.host_pool().num_blocks(), 0);
  for (const auto& [id, group] : groups_) {
    for (const auto& sequence : group.sequences) {
      const bool on_host = &sequence->table().pool() == &kv_cache_.host_pool();
      count(sequence->table().blocks(), on_host ? holders.on_host : holders.on_device);
    }
  }
  for (const BlockTable* table : pins_.tables()) {
    count(table->blocks(), holders.on_device);
  }
  return holders;
}

std::int64_t Scheduler::count_running_sequences() const {
  std::int64_t num_sequences = 0;
  for (const auto& [id, group] : groups_) {
    num_sequences += group.state == GroupState::kRunning ? group.num_counted() : 0;
  }
  return num_sequences;
}

bool Scheduler::references_add_up() const {
  std::int64_t num_entries = pins_.num_held_blocks();
  for (const RequestQueue* queue : {&running_, &swapped_}) {
    for (std::size_t i = 0; i < queue->size(); ++i) {
      for (const auto& sequence : (*queue)[i].sequences) {
        num_entries += sequence->table().size();
      }
    }
  }
  return num_entries == kv_cache_.device_pool().num_references() + kv_cache_.host_pool().num_references();
}

void Scheduler::check_references() const {
  invariant(all_released(), kRefusedRelease);
  const Holders holders = count_holders();
  for (const auto& [pool, held] :
       {std::pair(&kv_cache_.device_pool(), &holders.on_device), std::pair(&kv_cache_.host_pool(), &holders.on_host)}) {
    if (const std::vector<BlockFault> faults = pool->faults(*held); !faults.empty()) {
      throw_invariant("Scheduler: " + faults.front().what, std::source_location::current());
    }
  }
  invariant(waiting_.size() + running_.size() + swapped_.size() == groups_.size(),
            "Scheduler: a group is in no queue, or in two");
  invariant(count_running_sequences() == num_running_sequences_, kLostRunning);
}

// Those that hold a block with a fault, and those that are wrong themselves.
void Scheduler::find_broken_groups(const KVCacheManager::Faults& faults) {
  for (const auto& [id, group] : groups_) {
    if (is_broken(id)) {
      continue;
    }
    const auto holds_fault = [&](const auto& sequence) {
      const bool on_host = &sequence->table().pool() == &kv_cache_.host_pool();
      return std::ranges::any_of(sequence->table().blocks(), [&](BlockId block) {
        return has_fault(on_host ? faults.on_host : faults.on_device, block);
      });
    };
    if (std::ranges::any_of(group.sequences, holds_fault)) {
      broken_.push_back({id, "holds one of these blocks"});
      continue;
    }
    try {
      check_group(group);
    } catch (const std::logic_error& error) {
      broken_.push_back({id, error.what()});
    }
  }
}

// Those that would write where they must not, by a plan that has not been updated.
void Scheduler::find_broken_plans() {
  for (const PlannedSequence& planned : plan_.sequences()) {
    if (plan_.spent() || planned.group == nullptr || is_broken(planned.group->id)) {
      continue;
    }
    try {
      kv_cache_.check_writable(planned.sequence->table(), planned.what.first_token, planned.what.num_tokens);
    } catch (const std::logic_error& error) {
      broken_.push_back({planned.group->id, error.what()});
    }
  }
}

// The queues, and what is counted of them, as the states of the groups say.
void Scheduler::put_in_order() {
  waiting_.clear();
  running_.clear();
  swapped_.clear();
  for (auto& [id, group] : groups_) {
    queue_of(group.state).insert(group);
  }
  num_running_sequences_ = count_running_sequences();
  stalled_.reset();
  beam_rows_.clear();
}

}  // namespace fastpaged
