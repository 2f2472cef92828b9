// Requests whose time is up.
#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged {

namespace {

Timetable::Entry entry_of(const SequenceGroup& group, Nanoseconds when) {
  return {.when = when, .arrival = group.arrival, .id = group.id};
}

}  // namespace

void Scheduler::set_deadlines(const SequenceGroup& group) {
  if (group.deadline != kNoDeadline) {
    deadlines_.insert(entry_of(group, group.deadline));
  }
  if (group.queue_deadline != kNoDeadline) {
    queue_deadlines_.insert(entry_of(group, group.queue_deadline));
  }
}

void Scheduler::clear_deadlines(const SequenceGroup& group) {
  if (group.deadline != kNoDeadline) {
    deadlines_.erase(entry_of(group, group.deadline));
  }
  clear_queue_deadline(group);
}

void Scheduler::clear_queue_deadline(const SequenceGroup& group) {
  if (group.queue_deadline != kNoDeadline) {
    queue_deadlines_.erase(entry_of(group, group.queue_deadline));
  }
}

// In order of their times; of two that are up at once, the deadline is the reason.
void Scheduler::end_expired() {
  while (deadlines_.is_due(now_) || queue_deadlines_.is_due(now_)) {
    const bool in_queue = queue_deadlines_.is_due(now_) &&
                          (deadlines_.empty() || queue_deadlines_.first().when < deadlines_.first().when);
    const GroupId id = (in_queue ? queue_deadlines_ : deadlines_).first().id;
    end_by_time(groups_.at(id), in_queue ? FinishReason::kQueueTimeout : FinishReason::kDeadline);
  }
}

// A search ends without its hypotheses, as one event of its first beam.
void Scheduler::end_by_time(SequenceGroup& group, FinishReason reason) {
  for (const auto& sequence : group.sequences) {
    SequenceEvent& end = ended_.emplace_back();
    end.group_id = group.id;
    end.sequence_id = sequence->id();
    end.parent_id = sequence->id();
    end.branch = sequence->branch();
    end.finished = true;
    end.finish_reason = reason;
    if (group.beams != nullptr) {
      break;
    }
  }
  ended_.back().group_finished = true;
  remove(group);
}

}  // namespace fastpaged
