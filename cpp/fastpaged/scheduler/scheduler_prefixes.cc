// What others have computed already: found when a group comes in, published when a step is done, and pinned.
#include <algorithm>
#include <cstddef>
#include <utility>

#include "fastpaged/base/check.h"
#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged {

namespace {

// Tokens of a sequence that may be another's: its last one is computed to sample from, and those that need a row of
// logits are computed to score.
std::int32_t most_adopted(const Sequence& sequence) {
  const bool scored = sequence.num_scored() == sequence.num_prompt_tokens() - 1;
  return scored ? sequence.num_tokens() - 1 : sequence.num_scored();
}

// The end of a prompt, be it one with an answer that is recomputed; a single token of an answer is none.
bool completes_prompt(const PlannedSequence& planned) {
  const bool decodes = planned.what.num_tokens == 1 && planned.sequence->num_output_tokens() > 0;
  return planned.what.samples && !decodes;
}

}  // namespace

// Nothing for a swapped group, which has it all, nor for a branch that waits for another one.
void Scheduler::look_up(const SequenceGroup& group) {
  found_.matches.assign(group.sequences.size(), PrefixMatch{});
  found_.num_in_use = 0;
  found_.num_tokens = 0;
  if (!config_.prefix_caching || group.skip_prefix_cache || group.state != GroupState::kWaiting) {
    return;
  }
  for (std::size_t i = 0; i < group.sequences.size(); ++i) {
    PrefixMatch& match = found_.matches[i];
    if (group.sequences[i]->rebuild().from == nullptr) {
      match = match_of(group, *group.sequences[i]);
      found_.num_in_use += match.num_in_use;
      found_.num_tokens += match.num_tokens;
    }
  }
}

PrefixMatch Scheduler::match_of(const SequenceGroup& group, const Sequence& sequence) const {
  return kv_cache_.match_prefix(sequence.token_ids(), most_adopted(sequence), group.cache_root);
}

// Whether what a waiting group lacks, less what it finds in use, fits into `spare`. What a group at the head of the
// line found when it last failed to fit is remembered: it can only have gained what the cache has gained since, so that
// it is mostly refused at once.
bool Scheduler::finds_room(const SequenceGroup& group, std::int64_t missing, std::int64_t spare) {
  const Stalled now = {group.arrival, group.num_preemptions, group.num_sequences()};
  const std::uint64_t num_gains = kv_cache_.num_prefix_gains();
  if (stalled_ == now &&
      missing - found_when_stalled_ - static_cast<std::int64_t>(num_gains - gains_when_stalled_) > spare) {
    return false;
  }
  look_up(group);
  if (missing - found_.num_in_use <= spare) {
    return true;
  }
  stalled_ = now;
  found_when_stalled_ = found_.num_in_use;
  gains_when_stalled_ = num_gains;
  return false;
}

// Whether a prompt that this plan completes, or one that goes before the group and has but a share of this plan, has
// the block that the group lacks next: it finds it in the next step, or a later one. Without that, requests that come
// together would all compute the prefix they share.
bool Scheduler::computes_prefix_of(const SequenceGroup& group) const {
  if (!config_.prefix_caching || group.skip_prefix_cache) {
    return false;
  }
  for (std::size_t i = 0; i < group.sequences.size(); ++i) {
    const Sequence& sequence = *group.sequences[i];
    const std::int64_t begin = std::int64_t{found_.matches[i].num_blocks()} * config_.block_size;
    const std::int64_t end = begin + config_.block_size;
    if (sequence.rebuild().from != nullptr || end > most_adopted(sequence)) {
      continue;
    }
    const auto computes_it = [&](const PlannedSequence& planned) {
      const ScheduledSequence& what = planned.what;
      if (planned.sequence == nullptr || what.first_token >= end || what.first_token + what.num_tokens < end ||
          planned.first_id != sequence.token_ids()[what.first_token] || !completes_prompt(planned) ||
          !planned.sequence->publishes() || planned.group->cache_root != group.cache_root) {
        return false;
      }
      const auto front = static_cast<std::size_t>(begin);  // compared last: mostly it is the end that differs
      const auto wanted = sequence.token_ids().first(static_cast<std::size_t>(end));
      const auto computed = planned.sequence->token_ids().first(wanted.size());
      return std::ranges::equal(computed.subspan(front), wanted.subspan(front)) &&
             std::ranges::equal(computed.first(front), wanted.first(front));
    };
    const auto will_compute_it = [&](const SequenceGroup* other) {
      return other->rank() < group.rank() && other->cache_root == group.cache_root &&
             std::ranges::any_of(other->sequences, [&](const auto& prompt) {
               return prompt->publishes() && prompt->num_computed_tokens() < end && end <= prompt->num_tokens() &&
                      std::ranges::equal(prompt->token_ids().first(static_cast<std::size_t>(end)),
                                         sequence.token_ids().first(static_cast<std::size_t>(end)));
             });
    };
    if (std::ranges::any_of(plan_.sequences(), computes_it) || std::ranges::any_of(cut_, will_compute_it)) {
      return true;
    }
  }
  return false;
}

// Takes over what look_up() found. REQUIRES: no block was allocated since.
void Scheduler::adopt_prefixes(SequenceGroup& group) {
  std::int32_t num_tokens = 0;
  std::int32_t num_host_tokens = 0;
  for (std::size_t i = 0; i < group.sequences.size(); ++i) {
    Sequence& sequence = *group.sequences[i];
    if (found_.matches[i].num_tokens == 0) {
      continue;
    }
    // The copy for another branch may have taken the place of what was found for this one.
    const PrefixMatch match = num_tokens == 0 ? std::move(found_.matches[i]) : match_of(group, sequence);
    pins_.touch(match.blocks);
    const std::int32_t num_adopted = sequence.adopt(kv_cache_, match);
    num_tokens += num_adopted;
    num_host_tokens += std::max(0, num_adopted - match.num_device_tokens(config_.block_size));
    pins_.offer(sequence.table(), sequence.num_published_blocks(), sequence.token_ids(), group.cache_root);
    group.take_over_from(sequence, kv_cache_);
  }
  forecast_.see_found(std::exchange(group.stakes, {}), num_tokens - num_host_tokens, num_host_tokens);
  if (!std::exchange(group.was_let_in, true)) {
    clear_queue_deadline(group);
    cached_.emplace_back(group.id, num_tokens);
    const bool looked_up = config_.prefix_caching && !group.skip_prefix_cache;
    stats_.num_prefix_tokens_looked_up += looked_up ? group.sequences.front()->num_prompt_tokens() : 0;
    stats_.num_prefix_tokens_found += num_tokens;
    stats_.num_host_prefix_tokens_found += num_host_tokens;
  }
}

// What is new of one branch may be cached in other blocks already. All branches that share its own ones turn to those
// together, or the group would hold both.
void Scheduler::publish(const SequenceGroup& group, Sequence& sequence) {
  if (!config_.prefix_caching || !publish_one(group, sequence)) {
    return;
  }
  for (const auto& sibling : group.sequences) {
    static_cast<void>(publish_one(group, *sibling));
  }
}

bool Scheduler::publish_one(const SequenceGroup& group, Sequence& sequence) {
  const bool more = sequence.publish(kv_cache_, group.cache_root);
  if (more) {
    pins_.offer(sequence.table(), sequence.num_published_blocks(), sequence.token_ids(), group.cache_root);
  }
  return more;
}

void Scheduler::reset_prefix_cache() {
  pins_.release_all();
  kv_cache_.reset_prefix_cache();
  for (auto& [id, group] : groups_) {
    for (const auto& sequence : group.sequences) {
      sequence->stop_publishing();
    }
  }
}

std::int32_t Scheduler::pin(PinId id, std::vector<TokenId> token_ids, std::string cache_root) {
  pins_.require_fits(id, token_ids);
  BlockTable table = kv_cache_.make_table(PrefixPins::owner_of(id));
  const std::int64_t whole_blocks = std::ssize(token_ids) / config_.block_size * config_.block_size;
  PrefixMatch match = kv_cache_.match_prefix(token_ids, static_cast<std::int32_t>(whole_blocks), cache_root);
  match.keep_device_blocks(config_.block_size);
  PublishedPrefix published;
  static_cast<void>(kv_cache_.adopt(table, match, published));
  const std::int32_t num_held = table.size();
  pins_.add(id, std::move(token_ids), std::move(cache_root), std::move(table));
  return num_held;
}

bool Scheduler::unpin(PinId id) {
  return pins_.erase(id);
}

std::int64_t Scheduler::num_logical_blocks() const {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    for (const auto& sequence : running_[i].sequences) {
      count += sequence->table().size();
    }
  }
  return count;
}

std::int64_t Scheduler::num_physical_blocks() const {
  std::vector<bool> held(static_cast<std::size_t>(config_.num_blocks), false);
  for (std::size_t i = 0; i < running_.size(); ++i) {
    for (const auto& sequence : running_[i].sequences) {
      for (const BlockId block : sequence->table().blocks()) {
        held[block] = true;
      }
    }
  }
  return std::ranges::count(held, true);
}

// For a group on the host that has the pool to itself, but for pins.
void Scheduler::release_pins_for(const SequenceGroup& swapped) {
  while (kv_cache_.num_free_blocks() < kv_cache_.missing_to_swap_in(swapped.tables()) && pins_.release_oldest()) {
  }
}

}  // namespace fastpaged
