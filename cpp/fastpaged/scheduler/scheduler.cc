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
  require(config.max_pinned_blocks == 0 || config.prefix_caching, [&] {
    return "max_pinned_blocks must be 0 without prefix_caching, got " + std::to_string(config.max_pinned_blocks);
  });
  require(config.max_num_rows == 0 || config.max_num_rows >= config.max_num_seqs, [&] {
    return "max_num_rows must be 0 (no limit) or >= max_num_seqs = " + std::to_string(config.max_num_seqs) + ", got " +
           std::to_string(config.max_num_rows);
  });
  validate(config.policy);
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

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(validated(config)),
      kv_cache_(config.num_blocks, config.block_size, config.num_host_blocks,
                {.enabled = config.prefix_caching, .hash_mask = config.prefix_hash_mask}),
      pins_(config.block_size, config.max_pinned_blocks),
      num_watermark_blocks_(static_cast<std::int64_t>(config.policy.watermark * config.num_blocks)) {}

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
  group.cache_root = std::move(request.cache_root);
  group.skip_prefix_cache = request.skip_prefix_cache;
  const SequenceId sequence_id = next_sequence_id_++;
  group.sequences.push_back(
      std::make_unique<Sequence>(sequence_id, std::move(request.prompt_token_ids), kv_cache_.make_table(sequence_id)));
  if (group.sampling.num_prompt_logprobs) {
    group.sequences.back()->score_prompt();
  }
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

bool Scheduler::finish(GroupId id, SequenceId sequence_id) {
  const auto found = groups_.find(id);
  Sequence* sequence = found == groups_.end() ? nullptr : found->second.find(sequence_id);
  if (sequence == nullptr) {
    return false;
  }
  remove_sequence(found->second, *sequence);
  return true;
}

void Scheduler::reset() {
  while (!groups_.empty()) {
    remove(groups_.begin()->second);
  }
  ended_.clear();
  forced_.clear();
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
  require(num_running_sequences_ < config_.max_num_seqs && group.num_sequences() < config_.max_num_batched_tokens, [&] {
    return name() + " cannot be forked: " + std::to_string(num_running_sequences_) + " sequences run, " +
           std::to_string(group.num_sequences()) + " of them of this request; max_num_seqs is " +
           std::to_string(config_.max_num_seqs) + " and max_num_batched_tokens " +
           std::to_string(config_.max_num_batched_tokens);
  });
  const SequenceId child = next_sequence_id_++;
  group.sequences.push_back(
      std::make_unique<Sequence>(parent->fork(child, kv_cache_.blocks_for(parent->num_computed_tokens()))));
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
  queue_of(group.state).erase(group);
  num_running_sequences_ -= group.state == GroupState::kRunning ? group.num_sequences() : 0;
  group.state = state;
  num_running_sequences_ += group.state == GroupState::kRunning ? group.num_sequences() : 0;
  queue_of(group.state).insert(group);
}

void Scheduler::remove(SequenceGroup& group) {
  for (const auto& sequence : group.sequences) {
    plan_.forget(*sequence);
  }
  queue_of(group.state).erase(group);
  num_running_sequences_ -= group.state == GroupState::kRunning ? group.num_sequences() : 0;
  const GroupId id = group.id;
  std::erase_if(forced_, [&](const ForcedPreemption& forced) { return forced.id == id; });
  groups_.erase(id);
}

bool Scheduler::remove_sequence(SequenceGroup& group, Sequence& sequence) {
  if (group.num_sequences() == 1) {
    remove(group);
    return true;
  }
  plan_.forget(sequence);
  num_running_sequences_ -= group.state == GroupState::kRunning ? 1 : 0;
  group.erase(sequence, kv_cache_);
  return false;
}

std::vector<SequenceEvent> Scheduler::update(const SchedulerOutput& plan, std::span<const SampledToken> tokens) {
  plan_.require_current(plan);
  require(std::cmp_equal(tokens.size(), plan_.num_rows()), [&] {
    return "tokens must have one entry per row of logits: the plan has " + std::to_string(plan_.num_rows()) + ", got " +
           std::to_string(tokens.size());
  });
  std::vector<SequenceEvent> events = std::exchange(ended_, {});
  events.reserve(events.size() + tokens.size());
  std::int32_t next_row = 0;
  for (const PlannedSequence& planned : plan_.sequences()) {
    const std::int32_t first_row = next_row;
    const std::int32_t num_rows = planned.what.num_rows();
    next_row += num_rows;
    if (planned.group == nullptr) {
      continue;
    }
    stats_.num_tokens_recomputed += planned.sequence->advance(planned.what.num_tokens);
    publish(*planned.group, *planned.sequence);  // before it shares its blocks, or gives them back
    if (planned.group->num_sequences() > 1) {
      planned.group->take_over_from(*planned.sequence, kv_cache_);
    }
    if (num_rows > 0) {
      SequenceEvent& event = events.emplace_back(take_rows(planned, tokens.subspan(first_row, num_rows), first_row));
      event.group_finished = event.finished && remove_sequence(*planned.group, *planned.sequence);
    }
  }
  plan_.spend();
  return events;
}

SequenceEvent Scheduler::take_rows(const PlannedSequence& planned, std::span<const SampledToken> rows,
                                   std::int32_t first_row) {
  const std::int32_t num_scores = planned.what.num_scores;
  SequenceEvent event{.group_id = planned.group->id,
                      .sequence_id = planned.sequence->id(),
                      .parent_id = planned.sequence->id(),
                      .score_row = first_row,
                      .sample_row = first_row + num_scores};
  const bool scored = std::ranges::all_of(rows.first(num_scores), &SampledToken::ok);
  event.num_scores = scored ? num_scores : 0;
  if (!scored || !rows.back().ok) {
    event.finished = true;
    event.finish_reason = FinishReason::kError;
  } else if (planned.what.samples) {
    take_token(*planned.group, *planned.sequence, rows.back().token_id, event);
  }
  return event;
}

void Scheduler::take_token(const SequenceGroup& group, Sequence& sequence, TokenId token, SequenceEvent& event) const {
  const StopConditions& stop = group.stop;
  const auto finish = [&](FinishReason reason) {
    event.finished = true;
    event.finish_reason = reason;
  };
  sequence.append(token);
  event.has_token = true;
  event.token_id = token;
  if (std::binary_search(stop.stop_token_ids.begin(), stop.stop_token_ids.end(), token)) {
    finish(FinishReason::kStop);
  } else if (sequence.num_output_tokens() >= stop.max_tokens || sequence.num_tokens() >= config_.max_model_len) {
    finish(FinishReason::kLength);
  }
}

const SequenceGroup& Scheduler::group(GroupId id) const {
  const auto found = groups_.find(id);
  require(found != groups_.end(), [&] { return "group_id " + std::to_string(id) + " is not here (any more)"; });
  return found->second;
}

}  // namespace fastpaged
