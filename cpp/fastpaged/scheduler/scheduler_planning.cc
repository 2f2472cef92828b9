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
  kv_cache_.start_step(plan_.step() + 1);
  invariant(all_released(), kRefusedRelease);
  distrust_copies();
  plan_copies_.clear();
  end_expired();
  constexpr std::int32_t kNoLimit = std::numeric_limits<std::int32_t>::max();
  const std::int32_t spare_rows = config_.max_num_rows == 0 ? kNoLimit : config_.max_num_rows - config_.max_num_seqs;
  plan_.start(config_.max_num_batched_tokens, spare_rows);
  age_line();
  preempt_as_told();
  plan_running();
  let_in();
  hand_out_rest();
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
  prefills_.clear();
  start_shares();
  // Groups leave from behind the one at i, or it is that one itself that leaves: an index stays good.
  for (std::size_t i = 0; i < running_.size() && plan_.budget() > 0;) {
    SequenceGroup& group = running_[i];
    const bool decodes = group.decodes();
    if (!decodes) {
      prefills_.push_back(&group);
    }
    i += !decodes || plan_decode(group) ? 1 : 0;
  }
  share_among_running();
  for (SequenceGroup* group : prefills_) {
    if (plan_.budget() == 0) {
      break;
    }
    if (group->state == GroupState::kRunning) {  // nobody is gone for good but by its own doing
      plan_prefill(*group);
    }
  }
  share_among_line();
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
  std::int32_t part_left = cut_part_;
  for (std::size_t i = 0; i < group.sequences.size();) {
    Sequence& sequence = *group.sequences[i];
    Limits limits = plan_limits();
    limits.cut = std::min(limits.cut, part_left);
    const auto [num_tokens, is_cut] = chunk_of(group, sequence, limits);
    const Room room = num_tokens == 0 ? Room::kThere : make_room(group, sequence, num_tokens);
    if (room == Room::kGroupGone) {
      return false;
    }
    if (room == Room::kThere) {
      if (num_tokens > 0) {
        plan_.add(group, sequence, num_tokens, is_cut);
        part_left -= is_cut ? num_tokens : 0;
      }
      if (shares_prefills() && num_tokens < group.num_prefill_tokens(sequence)) {
        note_cut(group);
      }
      ++i;
    }
  }
  return true;
}

// Grows the sequence's table for num_tokens more, whoever has to go for it.
Scheduler::Room Scheduler::make_room(SequenceGroup& group, Sequence& sequence, std::int32_t num_tokens) {
  const std::int32_t first_token = sequence.num_computed_tokens();
  while (!kv_cache_.reserve(sequence.table(), first_token, num_tokens)) {
    const std::int64_t missing = kv_cache_.missing_blocks(sequence.table(), first_token, num_tokens);
    if (num_held_blocks(group) + missing > kv_cache_.num_usable_blocks()) {
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
  return Room::kThere;
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
  std::int32_t steps_kept = this->steps_kept(running_.size());
  const auto steps_for = [&](const SequenceGroup& group) {
    return group.num_preemptions > 0 ? config_.policy.resume_grace_steps : steps_kept;
  };
  const auto needs_beside = [&](const SequenceGroup& group) -> const RunningNeeds& {
    if (!running || running->steps != steps_for(group)) {
      running = needs_of_running(steps_for(group), running_.size());
    }
    return *running;
  };
  while (plan_.budget() > 0 || config_.policy.by_priority) {
    SequenceGroup* group = next_in_line();
    if (group == nullptr) {
      return;
    }
    const std::size_t num_preempted = preempted_.size();
    if (plan_.budget() == 0 || !may_enter(*group, needs_beside(*group))) {
      if (!make_way_for(*group)) {
        return;
      }
      steps_kept = this->steps_kept(running_.size());
    }
    const std::int32_t steps = steps_for(*group);
    const bool keeps = group->num_preemptions > 0 && steps > 0;
    group->kept_until = keeps ? plan_.step() + static_cast<std::uint64_t>(steps) : 0;
    const bool runs = enter(*group);
    if (preempted_.size() > num_preempted) {
      running.reset();
      steps_kept = this->steps_kept(running_.size());
    } else if (runs) {
      if (running && counts_needs(steps)) {
        add_needs(*group, *running);
      }
      steps_kept = std::max(steps_kept, keeps ? steps : 0);
    }
  }
}

SequenceGroup* Scheduler::next_in_line() const {
  const bool swapped = !swapped_.empty() && (waiting_.empty() || config_.policy.swapped_before_waiting ||
                                             swapped_.oldest().rank() < waiting_.oldest().rank());
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
  const std::int64_t spare = kv_cache_.num_free_blocks() - num_watermark_blocks_ - blocks_beside(group, running);
  if (group.state == GroupState::kSwapped) {
    look_up(group);
    const std::int64_t back = kv_cache_.missing_to_swap_in(group.tables());
    return back + more_blocks(group, running.steps) <= spare && fits_plan(group, plan_limits());
  }
  return finds_room(group, missing_blocks(group, running.steps), spare) && fits_plan(group, plan_limits()) &&
         !computes_prefix_of(group);
}

bool Scheduler::enter(SequenceGroup& group) {
  if (group.state == GroupState::kSwapped) {
    if (running_.empty()) {
      release_pins_for(group);
    }
    const std::int64_t copies_before = num_swap_copies();
    invariant(kv_cache_.swap_in(group.tables()), "Scheduler: no room for a swapped group that fits");
    const std::int64_t num_copied = num_swap_copies() - copies_before;
    group.num_blocks_swapped_in += num_copied;
    forecast_.see_swapped_in(num_held_blocks(group), num_copied);
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
