// What groups may still take of the free blocks, and who keeps what it has for a while: hysteresis.
//
// A group that comes back after a preemption is kept over a window of policy.resume_grace_steps steps. It is let in
// only where there is room for all that it and everyone who runs may take within the window, and while the window lasts
// nobody is let in beside it who does not leave that room. So nobody needs to be preempted for room in it.
#include <algorithm>
#include <cstddef>

#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged {

// Blocks that the known tokens of this group still lack, and those that `steps` more steps may ask for.
std::int64_t Scheduler::missing_blocks(const SequenceGroup& group, std::int32_t steps) const {
  std::int64_t missing = steps > 0 ? missing_blocks_to_come(group, steps) : 0;
  for (const auto& sequence : group.sequences) {
    const std::int32_t more = growth(group, *sequence, steps);
    const std::int32_t shared_blocks = sequence->rebuild().num_tokens / config_.block_size;
    missing += sequence->rebuild().from != nullptr
                   ? kv_cache_.blocks_for(sequence->num_tokens() + more) - shared_blocks
                   : kv_cache_.missing_blocks(sequence->table(), sequence->num_computed_tokens(),
                                              sequence->num_uncomputed_tokens() + more);
  }
  return missing;
}

// Of branches that are not there yet: samples that are still to part take all blocks but the full ones of the prompt,
// and so do beams, any of which may be forked anew in each step, beyond what is full by now.
std::int64_t Scheduler::missing_blocks_to_come(const SequenceGroup& group, std::int32_t steps) const {
  const Sequence& first = *group.sequences.front();
  const std::int32_t num_known = first.num_tokens() - (group.beams != nullptr ? 1 : 0);
  const std::int64_t num_to_come = group.num_counted() - (group.beams != nullptr ? 0 : group.num_sequences());
  const std::int32_t num_blocks = kv_cache_.blocks_for(first.num_tokens() + growth(group, first, steps));
  return num_to_come * (num_blocks - num_known / config_.block_size);
}

// Tokens that this branch may compute in so many steps beside those that are known. Its last one never is.
std::int32_t Scheduler::growth(const SequenceGroup& group, const Sequence& sequence, std::int32_t steps) const {
  return std::min({steps, group.stop.max_tokens - 1 - sequence.num_output_tokens(),
                   config_.max_model_len - 1 - sequence.num_tokens()});
}

Scheduler::RunningNeeds Scheduler::needs_of_running(std::int32_t steps, std::size_t num_running) const {
  RunningNeeds needs = {.steps = steps, .num_blocks = 0, .most_branches = 0};
  for (std::size_t i = 0; counts_needs(steps) && i < num_running; ++i) {
    add_needs(running_[i], needs);
  }
  return needs;
}

void Scheduler::add_needs(const SequenceGroup& group, RunningNeeds& needs) const {
  needs.num_blocks += missing_blocks(group, needs.steps);
  needs.most_branches = std::max(needs.most_branches, group.num_counted());
}

// Blocks that must stay free beside those that this group takes as it comes in: those that run will take them. With
// block_per_branch whoever decodes asks for as many free ones as it has branches, whatever it takes of them.
std::int64_t Scheduler::blocks_beside(const SequenceGroup& group, const RunningNeeds& running) const {
  const bool per_branch = config_.policy.block_per_branch && running.steps > 0;
  return running.num_blocks + (per_branch ? std::max(running.most_branches, group.num_counted()) : 0);
}

// Beside those that it held, of a swapped group.
std::int64_t Scheduler::more_blocks(const SequenceGroup& group, std::int32_t steps) const {
  const bool per_branch = config_.policy.block_per_branch && steps == 0;
  return per_branch ? group.num_sequences() : missing_blocks(group, steps);
}

// How many steps after this one the last window lasts, of the first num_running groups that run.
std::int32_t Scheduler::steps_kept(std::size_t num_running) const {
  std::uint64_t last = plan_.step();
  for (std::size_t i = 0; config_.policy.resume_grace_steps > 0 && i < num_running; ++i) {
    last = std::max(last, running_[i].kept_until);
  }
  return static_cast<std::int32_t>(last - plan_.step());
}

// Who has to go for want of room of this group: the youngest of those that are not older, and that nobody keeps. Who
// is kept goes where there is no other way (a fork or a pin has taken the room), lest the oldest be preempted.
SequenceGroup& Scheduler::victim_for(const SequenceGroup& group) const {
  for (std::size_t i = running_.size(); i-- > 1;) {
    if (!is_kept(running_[i])) {
      return running_[i];
    }
    if (&running_[i] == &group) {
      break;
    }
  }
  return running_.youngest();
}

}  // namespace fastpaged
