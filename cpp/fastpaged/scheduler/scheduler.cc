#include "fastpaged/scheduler/scheduler.h"

#include <algorithm>
#include <memory>
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
  require_at_least(0, "num_host_blocks", config.num_host_blocks);
  require_at_least(0, "max_pinned_blocks", config.max_pinned_blocks);
  require_at_least(0, "max_cache_events", config.max_cache_events);
  require(config.max_pinned_blocks == 0 || config.prefix_caching, [&] {
    return "max_pinned_blocks must be 0 without prefix_caching, got " + std::to_string(config.max_pinned_blocks);
  });
  require(config.max_num_rows == 0 || config.max_num_rows >= config.max_num_seqs, [&] {
    return "max_num_rows must be 0 (no limit) or >= max_num_seqs = " + std::to_string(config.max_num_seqs) + ", got " +
           std::to_string(config.max_num_rows);
  });
  validate(config.policy);
  validate(config.costs);
  require(config.policy.chunked_prefill || config.max_num_batched_tokens >= config.max_model_len, [&] {
    return "max_num_batched_tokens must be >= max_model_len = " + std::to_string(config.max_model_len) +
           " without chunked_prefill, got " + std::to_string(config.max_num_batched_tokens);
  });
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

// A group's branches decode in one step.
void require_runs_together(const NewRequest& request, const SchedulerConfig& config) {
  require_at_least(1, "num_samples", request.num_samples);
  const auto require_fits_in = [&](std::string_view name, std::int32_t num_branches) {
    require(num_branches <= config.max_num_seqs && num_branches <= config.max_num_batched_tokens, [&] {
      return std::string(name) + " must be <= max_num_seqs = " + std::to_string(config.max_num_seqs) +
             " and <= max_num_batched_tokens = " + std::to_string(config.max_num_batched_tokens) + ", got " +
             std::to_string(num_branches);
    });
  };
  require_fits_in("num_samples", request.num_samples);
  if (request.sampling.beam) {
    require_fits_in("beam_width", request.sampling.beam->width);
    require(request.num_samples == 1,
            [&] { return "num_samples must be 1 with beams, got " + std::to_string(request.num_samples); });
  }
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(validated(config)),
      kv_cache_(config.num_blocks, config.block_size, config.num_host_blocks,
                {.enabled = config.prefix_caching,
                 .hash_mask = config.prefix_hash_mask,
                 .max_events = config.max_cache_events,
                 .host_tier = config.host_prefix_tier}),
      pins_(config.block_size, config.max_pinned_blocks),
      num_watermark_blocks_(static_cast<std::int64_t>(config.policy.watermark * config.num_blocks)) {
  weigh_evictions();
}

void Scheduler::add(NewRequest request) {
  require_fits(request.prompt_token_ids, config_, kv_cache_);
  require_at_least(1, "max_tokens", request.stop.max_tokens);
  validate(request.sampling);
  require_runs_together(request, config_);
  const bool unreported =
      std::any_of(ended_.begin(), ended_.end(), [&](const SequenceEvent& end) { return end.group_id == request.id; });
  require(!unreported && !groups_.contains(request.id), [&] {
    return "group_id " + std::to_string(request.id) + " is in use: ids must be unique among unfinished requests";
  });
  std::sort(request.stop.stop_token_ids.begin(), request.stop.stop_token_ids.end());

  costs_of_ended_.erase(request.id);
  costs_ended_before_.erase(request.id);
  SequenceGroup& group = groups_[request.id];
  group.id = request.id;
  group.arrival = next_arrival_++;
  group.priority = config_.policy.by_priority ? request.priority : 0;
  group.deadline = request.deadline;
  group.queue_deadline = request.queue_deadline;
  group.sampling = request.sampling;
  group.stop = std::move(request.stop);
  group.cache_root = std::move(request.cache_root);
  group.skip_prefix_cache = request.skip_prefix_cache;
  group.num_reserved = request.num_samples;
  if (group.sampling.beam) {
    const auto num_prompt_tokens = static_cast<std::int32_t>(request.prompt_token_ids.size());
    const std::int32_t max_length = std::min(group.stop.max_tokens, config_.max_model_len - num_prompt_tokens);
    group.beams = std::make_unique<BeamSearch>(*group.sampling.beam, max_length);
    group.num_reserved = group.beams->width();
  }
  const SequenceId sequence_id = next_sequence_id_++;
  group.sequences.push_back(
      std::make_unique<Sequence>(sequence_id, std::move(request.prompt_token_ids), kv_cache_.make_table(sequence_id)));
  if (group.sampling.num_prompt_logprobs) {
    group.sequences.back()->score_prompt();
  }
  waiting_.insert(group);
  join_line(group);
  set_deadlines(group);
}

bool Scheduler::abort(GroupId id) {
  const auto found = groups_.find(id);
  if (found == groups_.end()) {
    return false;
  }
  remove(found->second);
  return true;
}

bool Scheduler::finish(GroupId id, SequenceId sequence_id) {
  const auto found = groups_.find(id);
  Sequence* sequence = found == groups_.end() ? nullptr : found->second.find(sequence_id);
  if (sequence == nullptr) {
    return false;
  }
  if (found->second.beams != nullptr) {
    return finish_beams(id, std::span(&sequence_id, 1));
  }
  remove_sequence(found->second, *sequence);
  return true;
}

void Scheduler::reset() {
  distrust_copies();  // of what stays cached
  while (!groups_.empty()) {
    remove(groups_.begin()->second);
  }
  ended_.clear();
  costs_of_ended_.clear();
  costs_ended_before_.clear();
  forced_.clear();
  broken_.clear();
  spared_events_.clear();
  static_cast<void>(kv_cache_.take_copies());
  plan_.spend();
}

SequenceId Scheduler::fork(GroupId id, SequenceId sequence_id) {
  require(plan_.spent(), [] { return std::string("fork() must come after update() and before the next schedule()"); });
  const auto found = groups_.find(id);
  Sequence* parent = found == groups_.end() ? nullptr : found->second.find(sequence_id);
  const auto name = [&] { return "sequence " + std::to_string(sequence_id) + " of group_id " + std::to_string(id); };
  require(parent != nullptr, [&] { return name() + " is not here (any more)"; });
  SequenceGroup& group = found->second;
  require(group.state == GroupState::kRunning && group.decodes(), [&] {
    return name() + " cannot be forked: its request must be running, with one token left to compute in each branch";
  });
  require(group.beams == nullptr, [&] { return name() + " cannot be forked: it is a beam"; });
  require(group.num_draws() == 1, [&] {
    return name() + " cannot be forked before the " + std::to_string(group.num_draws()) +
           " samples of its request have parted";
  });
  require(num_running_sequences_ < config_.max_num_seqs && group.num_sequences() < config_.max_num_batched_tokens, [&] {
    return name() + " cannot be forked: " + std::to_string(num_running_sequences_) + " sequences run, " +
           std::to_string(group.num_sequences()) + " of them of this request; max_num_seqs is " +
           std::to_string(config_.max_num_seqs) + " and max_num_batched_tokens " +
           std::to_string(config_.max_num_batched_tokens);
  });
  const SequenceId child = next_sequence_id_++;
  group.sequences.push_back(std::make_unique<Sequence>(
      parent->fork(child, group.num_branches++, kv_cache_.blocks_for(parent->num_computed_tokens()))));
  ++num_running_sequences_;
  return child;
}

RequestQueue& Scheduler::queue_of(GroupState state) {
  return state == GroupState::kRunning ? running_ : state == GroupState::kSwapped ? swapped_ : waiting_;
}

const RequestQueue& Scheduler::queue_of(GroupState state) const {
  return state == GroupState::kRunning ? running_ : state == GroupState::kSwapped ? swapped_ : waiting_;
}

void Scheduler::change_state(SequenceGroup& group, GroupState state) {
  const bool ran = group.state == GroupState::kRunning;
  queue_of(group.state).erase(group);
  num_running_sequences_ -= group.state == GroupState::kRunning ? group.num_counted() : 0;
  group.state = state;
  num_running_sequences_ += group.state == GroupState::kRunning ? group.num_counted() : 0;
  queue_of(group.state).insert(group);
  if (ran) {
    join_line(group);
  } else if (group.state == GroupState::kRunning) {
    leave_line(group);
  }
}

void Scheduler::remove(SequenceGroup& group) {
  for (const auto& sequence : group.sequences) {
    plan_.forget(*sequence);
  }
  queue_of(group.state).erase(group);
  clear_deadlines(group);
  std::erase(cut_, &group);
  if (group.state != GroupState::kRunning) {
    leave_line(group);
  }
  num_running_sequences_ -= group.state == GroupState::kRunning ? group.num_counted() : 0;
  const GroupId id = group.id;
  if (group.num_preemptions > 0 || group.num_tokens_recomputed > 0) {  // the latter alone: after a step that failed
    costs_of_ended_[id] = request_cost(id);
  }
  std::erase_if(forced_, [&](const ForcedPreemption& forced) { return forced.id == id; });
  groups_.erase(id);
}

bool Scheduler::remove_sequence(SequenceGroup& group, Sequence& sequence) {
  if (group.num_sequences() == 1) {
    remove(group);
    return true;
  }
  plan_.forget(sequence);
  const std::int64_t num_counted = group.num_counted();
  group.erase(sequence, kv_cache_);
  num_running_sequences_ -= group.state == GroupState::kRunning ? num_counted - group.num_counted() : 0;
  return false;
}

const SequenceGroup& Scheduler::group(GroupId id) const {
  const auto found = groups_.find(id);
  require(found != groups_.end(), [&] { return "group_id " + std::to_string(id) + " is not here (any more)"; });
  return found->second;
}

}  // namespace fastpaged
