// Who goes before whom, and who has to make way for a better priority.
#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <vector>

#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged {

namespace {

// Who may be preempted for the priority of `group`.
bool gives_way(const SequenceGroup& running, const SequenceGroup& group) {
  return !running.aged && running.priority > group.priority;
}

}  // namespace

bool Scheduler::may_age(const SequenceGroup& group) const {
  return config_.policy.by_priority && config_.policy.ageing_steps > 0 && !group.aged;
}

// By the first plan that finds it passed over, in line, by ageing_steps plans.
Timetable::Entry Scheduler::ageing_of(const SequenceGroup& group) const {
  const std::int64_t more = config_.policy.ageing_steps - group.num_passed_over;
  return {.when = group.in_line_since + 1 + more, .arrival = group.arrival, .id = group.id};
}

void Scheduler::join_line(SequenceGroup& group) {
  group.in_line_since = static_cast<std::int64_t>(plan_.step());
  if (may_age(group)) {
    ageing_.insert(ageing_of(group));
  }
}

void Scheduler::leave_line(SequenceGroup& group) {
  if (may_age(group)) {
    ageing_.erase(ageing_of(group));
  }
  const std::int64_t last_step = static_cast<std::int64_t>(plan_.step()) - 1;
  group.num_passed_over += std::max<std::int64_t>(last_step - group.in_line_since, 0);
}

void Scheduler::age_line() {
  while (ageing_.is_due(static_cast<std::int64_t>(plan_.step()))) {
    SequenceGroup& group = groups_.at(ageing_.first().id);
    RequestQueue& queue = queue_of(group.state);
    queue.erase(group);
    ageing_.erase(ageing_of(group));
    group.aged = true;
    queue.insert(group);
  }
}

// Whether the first in line comes in if the worst that run are preempted, as many as it takes and no more: all of them
// have a worse priority. If so, they are. Who waits for a prefix makes nobody go, nor does who is too large for the
// whole pool.
bool Scheduler::make_way_for(const SequenceGroup& group) {
  if (!config_.policy.by_priority || running_.empty() || !gives_way(running_.youngest(), group)) {
    return false;
  }
  look_up(group);
  if (computes_prefix_of(group) || num_held_blocks(group) + missing_blocks(group, 0) > kv_cache_.num_usable_blocks()) {
    return false;
  }
  for (PrefixMatch& match : found_.matches) {  // swapping victims may take the host's
    const std::int32_t num_tokens = match.num_device_tokens(config_.block_size);
    if (num_tokens < match.num_tokens) {
      found_.num_tokens -= match.num_tokens - num_tokens;
      match.keep_device_blocks(config_.block_size);
    }
  }
  Way way = way_of(group);
  for (std::size_t i = running_.size(); i-- > 0;) {
    if (!gives_way(running_[i], group)) {
      return false;
    }
    clear_way(running_[i], way);
    if (i > 0 && !is_clear(group, way, i)) {
      continue;
    }
    while (running_.size() > i) {
      preempt_for_room(running_.youngest());
    }
    look_up(group);  // what was in use may be free by now
    return true;
  }
  return false;
}

Scheduler::Way Scheduler::way_of(const SequenceGroup& group) const {
  Way way;
  way.num_sequences = num_running_sequences_ + group.num_counted();
  way.num_free_blocks = kv_cache_.num_free_blocks();
  way.limits = plan_limits();
  const auto find = [&](BlockId block) {
    ++way.found[block];
    way.num_found_in_use += kv_cache_.device_pool().ref_count(block) > 0 ? 1 : 0;
  };
  for (const PrefixMatch& match : found_.matches) {
    std::ranges::for_each(match.blocks, find);
  }
  if (group.state == GroupState::kSwapped) {
    way.num_held_blocks = num_held_blocks(group);
    std::ranges::for_each(kv_cache_.device_copies(group.tables()), find);
  }
  return way;
}

// As if this group did not run.
void Scheduler::clear_way(const SequenceGroup& victim, Way& way) const {
  way.num_sequences -= victim.num_counted();
  for (const auto& sequence : victim.sequences) {
    for (const BlockId block : sequence->table().blocks()) {
      if (++way.given_back[block] == kv_cache_.device_pool().ref_count(block)) {
        ++way.num_free_blocks;
        const auto found = way.found.find(block);
        way.num_found_in_use -= found == way.found.end() ? 0 : found->second;
      }
    }
  }
  const StepPlan::Share planned = plan_.share_of(victim);
  way.limits.budget += planned.num_tokens;
  way.limits.cut += planned.num_cut_tokens;
  way.limits.spare_rows += planned.num_spare_rows;
}

// Whether the group would come in beside the first num_running of those that run.
bool Scheduler::is_clear(const SequenceGroup& group, const Way& way, std::size_t num_running) const {
  if (way.num_sequences > config_.max_num_seqs || !fits_plan(group, way.limits)) {
    return false;
  }
  const std::int32_t steps = group.num_preemptions > 0 ? config_.policy.resume_grace_steps : steps_kept(num_running);
  const std::int64_t spare = way.num_free_blocks - num_watermark_blocks_;
  const std::int64_t back = way.num_held_blocks - way.num_found_in_use;
  const bool swapped = group.state == GroupState::kSwapped;
  const std::int64_t wanted = back + (swapped ? more_blocks(group, steps) : missing_blocks(group, steps));
  return wanted <= spare && wanted <= spare - blocks_beside(group, needs_of_running(steps, num_running));
}

}  // namespace fastpaged
