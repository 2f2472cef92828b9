#include "proofs/fake_engine.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <ranges>
#include <string>
#include <utility>

#include "kv_cache/slow_kv_cache.h"

namespace fastpaged::test {

FakeEngine::FakeEngine(const SchedulerConfig& config, int num_layers)
    : scheduler_(config),
      builder_(scheduler_),
      kv_(scheduler_.kv_cache(), num_layers),
      cache_(scheduler_, kv_),
      rebuild_bound_(scheduler_) {}

void FakeEngine::add(const NewRequest& request) {
  scheduler_.add(request);
  cache_.know_root(request.cache_root);
  requests_.add(request, scheduler_.group(request.id).sequences.at(0)->id());
  check();
}

void FakeEngine::abort(GroupId id) {
  REQUIRE(scheduler_.abort(id));
  requests_.erase(id);
  check();
}

void FakeEngine::finish(GroupId id, SequenceId branch) {
  REQUIRE(scheduler_.finish(id, branch));
  requests_.finish(id, branch);
  const std::int32_t num_there = scheduler_.num_waiting() + scheduler_.num_running() + scheduler_.num_swapped();
  if (requests_.contains(id) && num_there < std::ssize(requests_.all())) {
    requests_.await_results(id);  // it was the last beam that could become better
  }
  check();
}

bool FakeEngine::may_fork(GroupId id) const {
  std::int64_t num_running = 0;
  for (const GroupId other : groups()) {
    const SequenceGroup& group = scheduler_.group(other);
    num_running += group.state == GroupState::kRunning ? group.num_counted() : 0;
  }
  const SequenceGroup& group = scheduler_.group(id);
  const PlainRequest& request = requests_.all().at(id);
  return request.parted && !request.asked.sampling.beam && scheduler_.plan().spent() &&
         group.state == GroupState::kRunning && group.decodes() && num_running < scheduler_.config().max_num_seqs &&
         group.num_sequences() < scheduler_.config().max_num_batched_tokens;
}

void FakeEngine::fork(GroupId id, SequenceId parent) {
  requests_.fork(id, parent, scheduler_.fork(id, parent));
  check();
  check_history();
}

void FakeEngine::preempt(GroupId id, PreemptionMode mode) {
  REQUIRE(scheduler_.preempt(id, mode));
  check();
}

void FakeEngine::reset() {
  scheduler_.reset();
  requests_.clear();
  unreported_.clear();
  check_all_given_back();
}

void FakeEngine::pin(PinId id, const std::vector<TokenId>& tokens, const std::string& root) {
  const std::int32_t block_size = scheduler_.config().block_size;
  std::int64_t num_blocks = std::ssize(tokens) / block_size;
  const bool fills_none = num_blocks == 0;
  for (const PinnedPrefix& other : scheduler_.pins()) {
    num_blocks += other.num_blocks;
  }
  if (fills_none || num_blocks > scheduler_.config().max_pinned_blocks) {
    REQUIRE_THROWS_AS(scheduler_.pin(id, tokens, root), std::invalid_argument);
    ++counts_.num_refused_pins;
  } else {
    const auto length = static_cast<std::int32_t>(tokens.size());
    const auto num_cached = std::ssize(scheduler_.kv_cache().match_prefix(tokens, length, root).blocks);
    REQUIRE(scheduler_.pin(id, tokens, root) == num_cached);
    cache_.pin(id, tokens, root);
  }
  check();
}

void FakeEngine::unpin(PinId id) {
  REQUIRE(scheduler_.unpin(id));
  REQUIRE_FALSE(scheduler_.unpin(id));
  cache_.unpin(id);
  check();
}

void FakeEngine::reset_prefix_cache() {
  scheduler_.reset_prefix_cache();
  REQUIRE(scheduler_.kv_cache().device_pool().cached_free_blocks().empty());
  check();
}

SchedulerOutput FakeEngine::schedule(Nanoseconds now) {
  const bool work = scheduler_.has_unfinished();
  now_ = now;
  rebuild_bound_.before_schedule(groups());
  SchedulerOutput plan = scheduler_.schedule(now);
  to_copy_ = one_by_one(plan.copies);
  note_doubt();
  REQUIRE((!work || plan.num_tokens > 0 || !plan.ended.empty()));
  hear(beyond_unreported(plan.ended), {}, true);
  for (const SequenceEvent& end : beyond_unreported(plan.ended)) {
    unreported_.emplace_back(end.group_id, end.sequence_id);
  }
  for (const GroupId id : groups()) {
    for (const SequenceId branch : branches(id)) {
      if (scheduler_.group(id).find(branch) == nullptr) {
        requests_.lose_beam(id, branch);
      }
    }
  }
  for (const ScheduledSequence& planned : plan.scheduled) {
    REQUIRE(requests_.all().at(planned.group_id).asked.deadline > now);
  }
  rebuild_bound_.after_schedule(groups(), plan);
  count(plan);
  check();
  return plan;
}

void FakeEngine::copy(std::span<const BlockCopy> copies) {
  kv_.copy(copies);
  to_copy_.erase(to_copy_.begin(), to_copy_.begin() + std::ssize(one_by_one(copies)));
  note_doubt();
}

// A block may be copied to more than once.
void FakeEngine::note_doubt() {
  in_doubt_.clear();
  for (const BlockCopy& copy : to_copy_) {
    const bool out = copy.kind == CopyKind::kSwapOut;
    in_doubt_.insert(out ? scheduler_.kv_cache().host_node(copy.destination) : copy.destination);
  }
}

void FakeEngine::count(const SchedulerOutput& plan) {
  for (const GroupId id : groups()) {  // what is found in the prefix cache counts as computed
    for (const auto& sequence : scheduler_.group(id).sequences) {
      std::int32_t& most = requests_.branch(id, sequence->id()).most_computed;
      most = std::max(most, sequence->num_computed_tokens());
    }
  }
  SchedulerStats& stats = counts_.stats;
  stats.num_preemptions += std::ssize(plan.preempted);
  stats.num_groups_swapped_out += std::ssize(plan.swapped_out);
  stats.num_groups_swapped_in += std::ssize(plan.swapped_in);
  for (const auto& [id, num_tokens] : plan.cached) {
    const NewRequest& asked = requests_.all().at(id).asked;
    const bool looks = scheduler_.config().prefix_caching && !asked.skip_prefix_cache;
    REQUIRE(num_tokens < std::ssize(asked.prompt_token_ids));
    REQUIRE((looks || num_tokens == 0));
    stats.num_prefix_tokens_looked_up += looks ? std::ssize(asked.prompt_token_ids) : 0;
    stats.num_prefix_tokens_found += num_tokens;
    std::int32_t& most = requests_.branch(id, branches(id).front()).most_computed;
    most = std::max(most, num_tokens);  // even if it was preempted again by the same plan
    counts_.num_found_again += num_tokens > 0 ? 1 : 0;
  }
  for (const BlockCopy& copy : plan.copies) {
    stats.num_blocks_swapped_out += copy.kind == CopyKind::kSwapOut ? copy.num_blocks : 0;
    stats.num_blocks_swapped_in += copy.kind == CopyKind::kSwapIn ? copy.num_blocks : 0;
    stats.num_blocks_copied_on_write += copy.kind == CopyKind::kCopyOnWrite ? copy.num_blocks : 0;
  }
}

void FakeEngine::compute(const SchedulerOutput& plan) {
  spoil_free_blocks();
  check_history();
  const Batch& batch = builder_.build(plan);
  REQUIRE(batch.context_lens.size() == plan.scheduled.size());
  for (std::size_t row = 0; row < plan.scheduled.size(); ++row) {
    check_context(batch, static_cast<std::int32_t>(row), plan.scheduled[row]);
  }
  for (std::size_t row = 0; row < plan.scheduled.size(); ++row) {
    write(batch, static_cast<std::int32_t>(row), plan.scheduled[row]);
  }
}

// What attention would read: all that came before the tokens of this step.
void FakeEngine::check_context(const Batch& batch, std::int32_t row, const ScheduledSequence& scheduled) {
  const std::int32_t block_size = scheduler_.kv_cache().block_size();
  const PlainBranch& branch = requests_.branch(scheduled.group_id, scheduled.sequence_id);
  REQUIRE(batch.context_lens[row] == scheduled.first_token + scheduled.num_tokens);
  REQUIRE(batch.query_start[row + 1] - batch.query_start[row] == scheduled.num_tokens);
  const std::span<const std::int32_t> table =
      batch.block_tables.subspan(std::int64_t{row} * batch.max_blocks_per_sequence, batch.max_blocks_per_sequence);
  for (std::int32_t position = 0; position < scheduled.first_token; ++position) {
    check_slot(scheduler_.kv_cache().device_pool(), table[position / block_size], branch, position);
  }
}

void FakeEngine::write(const Batch& batch, std::int32_t row, const ScheduledSequence& scheduled) {
  const PlainBranch& branch = requests_.branch(scheduled.group_id, scheduled.sequence_id);
  for (std::int32_t i = batch.query_start[row]; i < batch.query_start[row + 1]; ++i) {
    const std::int32_t position = batch.positions[i];
    REQUIRE(position == scheduled.first_token + i - batch.query_start[row]);
    REQUIRE(batch.token_ids[i] == branch.tokens.at(position));
    kv_.write(batch.slot_mapping[i], branch.histories.at(position));
  }
}

void FakeEngine::update(const SchedulerOutput& plan, const SampledRows& results) {
  for (const ScheduledSequence& scheduled : plan.scheduled) {
    if (!requests_.contains(scheduled.group_id, scheduled.sequence_id)) {
      continue;
    }
    std::int32_t& most = requests_.branch(scheduled.group_id, scheduled.sequence_id).most_computed;
    for (std::int32_t i = scheduled.first_token; i < scheduled.first_token + scheduled.num_tokens; ++i) {
      counts_.stats.num_tokens_recomputed += i < most ? 1 : 0;
      most = std::max(most, i + 1);
    }
  }
  const std::vector<SequenceEvent> events = scheduler_.update(plan, results);
  hear(beyond_unreported(events), results, false);
  unreported_.clear();
  rebuild_bound_.after_update(groups());
  check();
  check_history();
}

// What has not been heard already, when it was planned.
std::span<const SequenceEvent> FakeEngine::beyond_unreported(std::span<const SequenceEvent> events) const {
  REQUIRE(events.size() >= unreported_.size());
  for (std::size_t i = 0; i < unreported_.size(); ++i) {
    REQUIRE(unreported_[i] == std::pair(events[i].group_id, events[i].sequence_id));
  }
  return events.subspan(unreported_.size());
}

void FakeEngine::hear(std::span<const SequenceEvent> events, const SampledRows& results, bool while_planning) {
  for (const SequenceEvent& event : events) {
    if (event.kind == EventKind::kSample) {
      const bool scores_alone = !event.finished && !event.has_token;
      REQUIRE((!scores_alone || event.num_scores > 0));
      REQUIRE((scores_alone || event.has_token == (!while_planning && event.finish_reason != FinishReason::kError)));
    }
    const bool expired = event.finished && (event.finish_reason == FinishReason::kDeadline ||
                                            event.finish_reason == FinishReason::kQueueTimeout);
    counts_.expired += expired ? 1 : 0;
    counts_.pool_ends += while_planning && !expired && event.kind != EventKind::kResult ? 1 : 0;
  }
  requests_.hear(events, results);
}

bool FakeEngine::all_of_it_is_here(const SchedulerOutput& plan) const {
  return std::ranges::all_of(plan.scheduled, [&](const ScheduledSequence& scheduled) {
    return requests_.contains(scheduled.group_id, scheduled.sequence_id);
  });
}

std::vector<GroupId> FakeEngine::groups() const {
  const auto ids = std::views::keys(requests_.all());
  return {ids.begin(), ids.end()};
}

std::vector<SequenceId> FakeEngine::branches(GroupId id) const {
  const auto ids = std::views::keys(requests_.all().at(id).branches);
  return {ids.begin(), ids.end()};
}

void FakeEngine::check() {
  scheduler_.check_invariants();
  REQUIRE(scheduler_.num_waiting() + scheduler_.num_running() + scheduler_.num_swapped() ==
          std::ssize(requests_.all()));
  for (const auto& [id, request] : requests_.all()) {
    const SequenceGroup& group = scheduler_.group(id);
    REQUIRE(group.num_sequences() == std::ssize(request.branches));
    std::int32_t last_rank = -1;
    for (const auto& sequence : group.sequences) {
      const PlainBranch& branch = request.branches.at(sequence->id());
      REQUIRE(std::ranges::equal(sequence->token_ids(), branch.tokens));
      REQUIRE((request.asked.sampling.beam ? branch.branch > last_rank : branch.branch == sequence->branch()));
      last_rank = branch.branch;
    }
  }
  const SchedulerStats& stats = scheduler_.stats();
  REQUIRE(stats.num_preemptions == counts_.stats.num_preemptions);
  REQUIRE(stats.num_groups_swapped_out == counts_.stats.num_groups_swapped_out);
  REQUIRE(stats.num_groups_swapped_in == counts_.stats.num_groups_swapped_in);
  REQUIRE(stats.num_blocks_swapped_out + stats.num_prefix_blocks_demoted == counts_.stats.num_blocks_swapped_out);
  REQUIRE(stats.num_blocks_swapped_in + stats.num_prefix_blocks_promoted == counts_.stats.num_blocks_swapped_in);
  REQUIRE(stats.num_blocks_copied_on_write == counts_.stats.num_blocks_copied_on_write);
  REQUIRE(stats.num_tokens_recomputed == counts_.stats.num_tokens_recomputed);
  REQUIRE(stats.num_prefix_tokens_looked_up == counts_.stats.num_prefix_tokens_looked_up);
  REQUIRE(stats.num_prefix_tokens_found == counts_.stats.num_prefix_tokens_found);
  REQUIRE((requests_.all().empty() ||
           stats.num_partial_prefix_blocks <= stats.num_blocks_copied_on_write + stats.num_prefix_blocks_promoted));
  cache_.check(in_doubt_);
}

// Every computed token of every branch, wherever its group is.
void FakeEngine::check_history() {
  const std::int32_t block_size = scheduler_.kv_cache().block_size();
  for (const auto& [id, request] : requests_.all()) {
    for (const auto& sequence : scheduler_.group(id).sequences) {
      const PlainBranch& branch = request.branches.at(sequence->id());
      const BlockTable& table = sequence->table();
      for (std::int32_t position = 0; position < sequence->num_computed_tokens(); ++position) {
        check_slot(table.pool(), table.blocks()[position / block_size], branch, position);
      }
    }
  }
}

void FakeEngine::check_slot(const BlockPool& pool, BlockId block, const PlainBranch& branch, std::int32_t position) {
  const std::int32_t offset = position % scheduler_.kv_cache().block_size();
  ++counts_.slots_checked;
  if (!kv_.holds(pool, block, offset, branch.histories.at(position))) {
    FAIL("position " << position << " of branch " << branch.branch << " is not what its history makes it: block "
                     << block << " of the " << pool.name() << " pool");
  }
}

// Nothing is left but what pins hold, and that is given back with them.
void FakeEngine::check_all_given_back() {
  const KVCacheManager& kv_cache = scheduler_.kv_cache();
  REQUIRE_FALSE(scheduler_.has_unfinished());
  REQUIRE(kv_cache.host_pool().num_free() == kv_cache.host_pool().num_blocks());
  std::int32_t num_held = 0;
  for (const PinnedPrefix& pin : scheduler_.pins()) {
    num_held += pin.num_held_blocks;
  }
  REQUIRE(kv_cache.num_blocks() - kv_cache.num_free_blocks() <= num_held);
  while (!cache_.pins().empty()) {
    unpin(cache_.pins().begin()->first);
  }
  REQUIRE(kv_cache.num_free_blocks() == kv_cache.num_blocks());
  const BlockPool& device = kv_cache.device_pool();
  REQUIRE(std::ssize(device.free_blocks()) + std::ssize(device.cached_free_blocks()) == kv_cache.num_blocks());
  check();
}

}  // namespace fastpaged::test
