// What a step computes: who runs goes on, who is in line comes in.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>

#include "fastpaged/base/check.h"
#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged {

SchedulerOutput Scheduler::schedule(Nanoseconds now) {
  require(now >= now_, [&] {
    return "now must be >= " + std::to_string(now_) + ", the time of the last schedule(), got " + std::to_string(now);
  });
  now_ = now;
  distrust_copies();
  constexpr std::int32_t kNoLimit = std::numeric_limits<std::int32_t>::max();
  const std::int32_t spare_rows = config_.max_num_rows == 0 ? kNoLimit : config_.max_num_rows - config_.max_num_seqs;
  plan_.start(config_.max_num_batched_tokens, spare_rows);
  preempt_as_told();
  plan_running();
  let_in();
  SchedulerOutput output = plan_.output();
  output.copies = kv_cache_.take_copies();
  plan_copies_ = output.copies;
  output.preempted = preempted_;
  output.swapped_out = swapped_out_;
  output.swapped_in = swapped_in_;
  output.let_in = let_in_;
  output.ended = ended_;
  output.cached = cached_;
  count_copies(output.copies);
  stats_.num_cached_blocks_evicted = static_cast<std::int64_t>(kv_cache_.num_evicted_blocks());
  stats_.num_pins_released = pins_.num_releases();
  return output;
}

void Scheduler::count_copies(std::span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies) {
    switch (copy.kind) {
      case CopyKind::kSwapOut:
        stats_.num_blocks_swapped_out += copy.num_blocks;
        break;
      case CopyKind::kSwapIn:
        stats_.num_blocks_swapped_in += copy.num_blocks;
        break;
      case CopyKind::kCopyOnWrite:
        stats_.num_blocks_copied_on_write += copy.num_blocks;
        break;
    }
  }
  count_moved_prefixes();
}

void Scheduler::plan_running() {
  for (const bool decodes : {true, false}) {
    // Groups leave from the back, or it is the one at i itself that leaves: an index stays good.
    std::size_t i = 0;
    while (i < running_.size() && plan_.budget() > 0) {
      SequenceGroup& group = running_[i];
      const bool runs_on = group.decodes() != decodes || (decodes ? plan_decode(group) : plan_prefill(group));
      i += runs_on ? 1 : 0;
    }
  }
}

bool Scheduler::plan_decode(SequenceGroup& group) {
  if (group.num_sequences() > plan_.budget()) {
    return true;
  }
  if (!make_room_per_branch(group)) {
    return false;
  }
  for (std::size_t i = 0; i < group.sequences.size();) {
    const Room room = make_room(group, *group.sequences[i], 1);
    if (room == Room::kGroupGone) {
      return false;
    }
    i += room == Room::kThere ? 1 : 0;
  }
  for (const auto& sequence : group.sequences) {
    plan_.add(group, *sequence, 1);
  }
  return true;
}

bool Scheduler::plan_prefill(SequenceGroup& group) {
  for (std::size_t i = 0; i < group.sequences.size();) {
    Sequence& sequence = *group.sequences[i];
    const std::int32_t num_tokens = chunk_of(group, sequence);
    const Room room = num_tokens == 0 ? Room::kThere : make_room(group, sequence, num_tokens);
    if (room == Room::kGroupGone) {
      return false;
    }
    if (room == Room::kThere) {
      if (num_tokens > 0) {
        plan_.add(group, sequence, num_tokens);
      }
      ++i;
    }
  }
  return true;
}

std::int32_t Scheduler::chunk_of(const SequenceGroup& group, const Sequence& sequence) const {
  const std::int32_t wanted = group.num_prefill_tokens(sequence);
  if (wanted == 0 || (!config_.policy.chunked_prefill && wanted > plan_.budget())) {
    return 0;
  }
  const std::int32_t threshold = config_.policy.long_prefill_token_threshold;
  const std::int32_t allowed = std::min(wanted, plan_.budget());
  return sequence.most_tokens(threshold > 0 ? std::min(allowed, threshold) : allowed,
                              1 + std::int64_t{plan_.spare_rows()});
}

// Grows the sequence's table for num_tokens more, whoever has to go for it.
Scheduler::Room Scheduler::make_room(SequenceGroup& group, Sequence& sequence, std::int32_t num_tokens) {
  const std::int32_t first_token = sequence.num_computed_tokens();
  for (;;) {
    if (kv_cache_.reserve(sequence.table(), first_token, num_tokens)) {
      return Room::kThere;
    }
    const std::int64_t missing = kv_cache_.missing_blocks(sequence.table(), first_token, num_tokens);
    if (num_held_blocks(group) + missing > kv_cache_.num_blocks()) {
      return end_at_ceiling(group, sequence);
    }
    if (running_.size() == 1 && pins_.release_oldest()) {
      continue;
    }
    SequenceGroup& victim = victim_for(group);
    const bool itself = &victim == &group;
    preempt_for_room(victim);
    if (itself) {
      return Room::kGroupGone;
    }
  }
}

// The paper's rule: a free block for each branch, needed or not. A group alone asks only for what it needs.
bool Scheduler::make_room_per_branch(SequenceGroup& group) {
  while (config_.policy.block_per_branch && running_.size() > 1 &&
         kv_cache_.num_free_blocks() < group.num_sequences()) {
    SequenceGroup& victim = victim_for(group);
    const bool itself = &victim == &group;
    preempt_for_room(victim);
    if (itself) {
      return false;
    }
  }
  return true;
}

Scheduler::Room Scheduler::end_at_ceiling(SequenceGroup& group, Sequence& sequence) {
  if (group.beams != nullptr) {
    return end_beam_at_ceiling(group, sequence);
  }
  SequenceEvent& end = ended_.emplace_back();
  end.group_id = group.id;
  end.sequence_id = sequence.id();
  end.parent_id = sequence.id();
  end.branch = sequence.branch();
  end.finished = true;
  end.finish_reason = FinishReason::kLength;
  end.group_finished = remove_sequence(group, sequence);
  return end.group_finished ? Room::kGroupGone : Room::kSequenceEnded;
}

void Scheduler::let_in() {
  if (waiting_.empty() && swapped_.empty()) {
    return;
  }
  std::optional<RunningNeeds> running;  // summed up once or twice, or a step that lets in many would take their square
  std::int32_t steps_kept = this->steps_kept();
  while (plan_.budget() > 0) {
    SequenceGroup* group = next_in_line();
    if (group == nullptr) {
      return;
    }
    const bool returns = group->num_preemptions > 0;
    const std::int32_t steps = returns ? config_.policy.resume_grace_steps : steps_kept;
    if (!running || running->steps != steps) {
      running = needs_of_running(steps);
    }
    if (!may_enter(*group, *running)) {
      return;
    }
    const std::size_t num_preempted = preempted_.size();
    group->kept_until = returns && steps > 0 ? plan_.step() + static_cast<std::uint64_t>(steps) : 0;
    const bool runs = enter(*group);
    if (preempted_.size() > num_preempted) {
      running.reset();
      steps_kept = this->steps_kept();
    } else if (runs) {
      if (counts_needs(steps)) {
        add_needs(*group, *running);
      }
      steps_kept = std::max(steps_kept, returns ? steps : 0);
    }
  }
}

SequenceGroup* Scheduler::next_in_line() const {
  const bool swapped = !swapped_.empty() && (waiting_.empty() || config_.policy.swapped_before_waiting ||
                                             swapped_.oldest().arrival < waiting_.oldest().arrival);
  if (swapped) {
    return swapped_for_room_ ? nullptr : &swapped_.oldest();
  }
  const bool kept_out =
      waiting_.empty() || std::find(kept_out_.begin(), kept_out_.end(), waiting_.oldest().id) != kept_out_.end();
  return kept_out ? nullptr : &waiting_.oldest();
}

bool Scheduler::may_enter(const SequenceGroup& group, const RunningNeeds& running) {
  if (running_.empty()) {
    look_up(group);
    return true;  // all there is is its own: never stuck
  }
  if (num_running_sequences_ + group.num_counted() > config_.max_num_seqs) {
    return false;
  }
  const std::int64_t spare = spare_blocks(group, running);
  const std::int64_t missing = missing_blocks(group, running.steps);
  if (group.state == GroupState::kSwapped) {
    look_up(group);
    const bool per_branch = config_.policy.block_per_branch && running.steps == 0;
    return kv_cache_.missing_to_swap_in(group.tables()) + (per_branch ? group.num_sequences() : missing) <= spare &&
           fits_budget(group);
  }
  return finds_room(group, missing, spare) && fits_budget(group) && !computes_prefix_of(group);
}

// Whether what it must compute at once is within the plan's budget.
bool Scheduler::fits_budget(const SequenceGroup& group) const {
  std::int64_t num_tokens = 0;
  for (const auto& sequence : group.sequences) {
    num_tokens += group.decodes() ? 1 : group.num_prefill_tokens(*sequence);
  }
  const bool whole = group.decodes() || !config_.policy.chunked_prefill;
  return !whole || num_tokens - found_.num_tokens <= plan_.budget();
}

bool Scheduler::enter(SequenceGroup& group) {
  if (group.state == GroupState::kSwapped) {
    if (running_.empty()) {
      release_pins_for(group);
    }
    const std::int64_t copies_before = num_swap_copies();
    invariant(kv_cache_.swap_in(group.tables()), "Scheduler: no room for a swapped group that fits");
    group.num_blocks_swapped_in += num_swap_copies() - copies_before;
    swapped_in_.push_back(group.id);
    ++stats_.num_groups_swapped_in;
  }
  change_state(group, GroupState::kRunning);
  let_in_.push_back(group.id);
  adopt_prefixes(group);
  return group.decodes() ? plan_decode(group) : plan_prefill(group);
}

// Blocks of one tier that this group's branches hold, shared ones counted once.
std::int64_t Scheduler::num_held_blocks(const SequenceGroup& group) {
  const std::vector<BlockTable*> tables = group.tables();
  const std::vector<const BlockTable*> views(tables.begin(), tables.end());
  return KVCacheManager::num_distinct_blocks(views);
}

}  // namespace fastpaged
