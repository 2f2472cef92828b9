#include "fastpaged/scheduler/scheduler.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "fastpaged/base/check.h"

namespace fastpaged {

namespace {

void require_at_least(std::int64_t minimum, std::string_view name, std::int64_t given) {
  require(given >= minimum, [&] {
    return std::string(name) + " must be >= " + std::to_string(minimum) + ", got " + std::to_string(given);
  });
}

const SchedulerConfig& validated(const SchedulerConfig& config) {
  require_at_least(1, "max_num_seqs", config.max_num_seqs);
  require_at_least(1, "max_num_batched_tokens", config.max_num_batched_tokens);
  require_at_least(2, "max_model_len", config.max_model_len);
  require_at_least(0, "long_prefill_token_threshold", config.long_prefill_token_threshold);
  return config;
}

void require_fits(const std::vector<TokenId>& prompt, const SchedulerConfig& config, const KVCacheManager& kv_cache) {
  const auto num_tokens = static_cast<std::int64_t>(prompt.size());
  require(num_tokens > 0, [] { return std::string("prompt_token_ids is empty: at least one token is needed"); });
  require(num_tokens < config.max_model_len, [&] {
    return "prompt_token_ids has " + std::to_string(num_tokens) + " tokens; at most " +
           std::to_string(config.max_model_len - 1) + " fit: max_model_len is " + std::to_string(config.max_model_len) +
           ", and one is the answer's";
  });
  require(num_tokens <= kv_cache.capacity(), [&] {
    return "prompt_token_ids has " + std::to_string(num_tokens) + " tokens; at most " +
           std::to_string(kv_cache.capacity()) + " fit: the KV cache has " + std::to_string(kv_cache.num_blocks()) +
           " blocks of " + std::to_string(kv_cache.block_size());
  });
  const auto negative = std::find_if(prompt.begin(), prompt.end(), [](TokenId token) { return token < 0; });
  require(negative == prompt.end(), [&] {
    return "prompt_token_ids[" + std::to_string(negative - prompt.begin()) + "] must be >= 0, got " +
           std::to_string(*negative);
  });
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(validated(config)), kv_cache_(config.num_blocks, config.block_size) {}

void Scheduler::add(NewRequest request) {
  require_fits(request.prompt_token_ids, config_, kv_cache_);
  require_at_least(1, "max_tokens", request.stop.max_tokens);
  validate(request.sampling);
  const bool unreported =
      std::any_of(ended_.begin(), ended_.end(), [&](const SequenceEvent& end) { return end.group_id == request.id; });
  require(!unreported && !groups_.contains(request.id), [&] {
    return "group_id " + std::to_string(request.id) + " is in use: ids must be unique among unfinished requests";
  });
  std::sort(request.stop.stop_token_ids.begin(), request.stop.stop_token_ids.end());

  SequenceGroup& group = groups_[request.id];
  group.id = request.id;
  group.arrival = next_arrival_++;
  group.sampling = request.sampling;
  group.stop = std::move(request.stop);
  group.sequences.emplace_back(next_sequence_id_++, std::move(request.prompt_token_ids), kv_cache_.make_table());
  waiting_.insert(group);
}

bool Scheduler::abort(GroupId id) {
  const auto found = groups_.find(id);
  if (found == groups_.end()) {
    return false;
  }
  remove(found->second);
  return true;
}

SchedulerOutput Scheduler::schedule() {
  plan_.start(config_.max_num_batched_tokens);
  preempted_.clear();
  plan_running(/*decodes=*/true);
  plan_running(/*decodes=*/false);
  admit_waiting();
  SchedulerOutput output = plan_.output();
  output.preempted = preempted_;
  output.ended = ended_;
  return output;
}

void Scheduler::plan_running(bool decodes) {
  // Groups leave from the back, or with the one at i itself: an index stays good.
  for (std::size_t i = 0; i < running_.size() && plan_.budget() > 0; ++i) {
    SequenceGroup& group = running_[i];
    for (Sequence& sequence : group.sequences) {
      const std::int32_t num_tokens = sequence.decodes() == decodes ? chunk_of(sequence) : 0;
      if (num_tokens == 0) {
        continue;
      }
      if (!make_room(group, sequence, num_tokens)) {
        break;
      }
      plan_.add(group, sequence, num_tokens);
    }
  }
}

void Scheduler::admit_waiting() {
  if (waiting_.empty() || plan_.budget() == 0) {
    return;
  }
  std::int64_t free_seats = config_.max_num_seqs;
  std::int64_t spare_blocks = kv_cache_.num_free_blocks();
  const auto let_in = [&](const SequenceGroup& group) {
    free_seats -= static_cast<std::int64_t>(group.sequences.size());
    spare_blocks -= missing_blocks(group);
  };
  for (std::size_t i = 0; i < running_.size(); ++i) {
    let_in(running_[i]);
  }
  while (!waiting_.empty() && plan_.budget() > 0) {
    SequenceGroup& group = waiting_.oldest();
    let_in(group);
    if (free_seats < 0 || spare_blocks < 0) {
      return;
    }
    waiting_.erase(group);
    running_.insert(group);
    group.state = GroupState::kRunning;
    for (Sequence& sequence : group.sequences) {
      const std::int32_t num_tokens = chunk_of(sequence);
      if (num_tokens > 0) {
        invariant(kv_cache_.reserve(sequence.table(), num_tokens), "Scheduler: no room for a group that fits");
        plan_.add(group, sequence, num_tokens);
      }
    }
  }
}

std::int32_t Scheduler::chunk_of(const Sequence& sequence) const {
  const std::int32_t wanted = std::min(sequence.num_uncomputed_tokens(), plan_.budget());
  const std::int32_t threshold = config_.long_prefill_token_threshold;
  return threshold > 0 ? std::min(wanted, threshold) : wanted;
}

bool Scheduler::make_room(SequenceGroup& group, Sequence& sequence, std::int32_t num_tokens) {
  while (!kv_cache_.reserve(sequence.table(), std::int64_t{sequence.num_computed_tokens()} + num_tokens)) {
    SequenceGroup& youngest = running_.youngest();
    if (running_.size() == 1) {
      // Alone, with every block its own: this sequence has reached the end of the pool.
      SequenceEvent end{.group_id = group.id, .sequence_id = sequence.id()};
      end.finished = true;
      end.finish_reason = FinishReason::kLength;
      ended_.push_back(end);
      plan_.take_out(group);
      remove(group);
      return false;
    }
    const bool itself = &youngest == &group;
    preempt(youngest);
    if (itself) {
      return false;
    }
  }
  return true;
}

std::int64_t Scheduler::missing_blocks(const SequenceGroup& group) const {
  std::int64_t missing = 0;
  for (const Sequence& sequence : group.sequences) {
    missing += std::max(0, kv_cache_.blocks_for(sequence.num_tokens()) - sequence.table().size());
  }
  return missing;
}

void Scheduler::preempt(SequenceGroup& group) {
  plan_.take_out(group);
  for (Sequence& sequence : group.sequences) {
    sequence.forget_computed();
  }
  running_.erase(group);
  waiting_.insert(group);
  group.state = GroupState::kWaiting;
  ++group.num_preemptions;
  preempted_.push_back(group.id);
}

void Scheduler::remove(SequenceGroup& group) {
  plan_.forget(group);
  (group.state == GroupState::kRunning ? running_ : waiting_).erase(group);
  const GroupId id = group.id;
  groups_.erase(id);
}

std::vector<SequenceEvent> Scheduler::update(const SchedulerOutput& plan, std::span<const SampledToken> tokens) {
  plan_.require_current(plan);
  require(std::cmp_equal(tokens.size(), plan_.num_samples()), [&] {
    return "tokens must have one entry per sampling sequence: the plan has " + std::to_string(plan_.num_samples()) +
           ", got " + std::to_string(tokens.size());
  });
  std::vector<SequenceEvent> events = std::exchange(ended_, {});
  events.reserve(events.size() + tokens.size());
  std::int32_t row = -1;
  for (const PlannedSequence& planned : plan_.sequences()) {
    row += planned.what.samples ? 1 : 0;
    if (planned.group == nullptr) {
      continue;
    }
    planned.sequence->advance(planned.what.num_tokens);
    if (planned.what.samples) {
      events.push_back(take_token(planned, tokens[row], row));
      if (events.back().finished) {
        remove(*planned.group);
      }
    }
  }
  plan_.spend();
  return events;
}

SequenceEvent Scheduler::take_token(const PlannedSequence& planned, const SampledToken& token, std::int32_t row) {
  Sequence& sequence = *planned.sequence;
  const StopConditions& stop = planned.group->stop;
  SequenceEvent event{.group_id = planned.group->id, .sequence_id = sequence.id(), .sample_row = row};
  const auto finish = [&](FinishReason reason) {
    event.finished = true;
    event.finish_reason = reason;
  };
  if (!token.ok) {
    finish(FinishReason::kError);
    return event;
  }
  sequence.append(token.token_id);
  event.has_token = true;
  event.token_id = token.token_id;
  if (std::binary_search(stop.stop_token_ids.begin(), stop.stop_token_ids.end(), token.token_id)) {
    finish(FinishReason::kStop);
  } else if (sequence.num_output_tokens() >= stop.max_tokens || sequence.num_tokens() >= config_.max_model_len) {
    finish(FinishReason::kLength);
  }
  return event;
}

const SequenceGroup& Scheduler::group(GroupId id) const {
  const auto found = groups_.find(id);
  require(found != groups_.end(), [&] { return "group_id " + std::to_string(id) + " is not here (any more)"; });
  return found->second;
}

}  // namespace fastpaged
