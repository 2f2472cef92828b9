#include "proofs/slow_snapshot.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace fastpaged::test {

void SlowSnapshot::check(const std::optional<SchedulerOutput>& plan) {
  const Scheduler& scheduler = engine_->scheduler();
  const KVSnapshot snapshot = scheduler.snapshot();
  look(plan);
  REQUIRE(snapshot.block_size == scheduler.config().block_size);
  REQUIRE(snapshot.planned == plan.has_value());
  REQUIRE((!plan || snapshot.step == plan->step));
  check_tier(snapshot.device, Tier::kDevice);
  check_tier(snapshot.host, Tier::kHost);
  check_bills(snapshot);
  check_ages(snapshot);
  check_events(snapshot);
  const Scheduler::SlotSplits splits = scheduler.slot_splits();
  REQUIRE(splits.device == snapshot.device.split);
  REQUIRE(splits.host == snapshot.host.split);
}

void SlowSnapshot::look(const std::optional<SchedulerOutput>& plan) {
  held_.clear();
  look_at_pins();
  for (const GroupId id : engine_->groups()) {
    look_at(id);
  }
  if (!plan) {
    return;
  }
  const std::int32_t block_size = engine_->scheduler().config().block_size;
  for (const ScheduledSequence& planned : plan->scheduled) {
    if (!engine_->requests().contains(planned.group_id, planned.sequence_id)) {
      continue;
    }
    const Sequence& sequence = *engine_->scheduler().group(planned.group_id).find(planned.sequence_id);
    for (std::int32_t i = planned.first_token; i < planned.first_token + planned.num_tokens; ++i) {
      Slot& slot = held(Tier::kDevice, sequence.table().blocks()[i / block_size]).slots.at(i % block_size);
      REQUIRE(slot == Slot::kNothing);
      slot = Slot::kReserved;
    }
  }
}

// A pin holds the beginning of what is cached of its prefix.
void SlowSnapshot::look_at_pins() {
  pins_.clear();
  for (const PinnedPrefix& pinned : engine_->scheduler().pins()) {
    const auto& pin = engine_->cache().pins().at(pinned.id);
    const auto num_tokens = static_cast<std::int32_t>(pin.tokens.size());
    std::vector<BlockId> blocks = engine_->scheduler().kv_cache().match_prefix(pin.tokens, num_tokens, pin.root).blocks;
    blocks.resize(static_cast<std::size_t>(pinned.num_held_blocks));
    for (std::int32_t i = 0; i < pinned.num_held_blocks; ++i) {
      Held& block = held(Tier::kDevice, blocks[i]);
      block.pinned = true;
      block.holders.push_back({.owner = PrefixPins::owner_of(pinned.id), .group_id = 0, .index = i});
      std::ranges::fill(block.slots, Slot::kToken);
    }
    pins_[pinned.id] = blocks;
  }
}

void SlowSnapshot::look_at(GroupId id) {
  const SequenceGroup& group = engine_->scheduler().group(id);
  const Tier tier = group.state == GroupState::kSwapped ? Tier::kHost : Tier::kDevice;
  const std::int32_t block_size = engine_->scheduler().config().block_size;
  for (const auto& sequence : group.sequences) {
    const std::span<const BlockId> table = sequence->table().blocks();
    for (std::int32_t i = 0; i < std::ssize(table); ++i) {
      held(tier, table[i]).holders.push_back({.owner = sequence->id(), .group_id = id, .index = i});
    }
    for (std::int32_t i = 0; i < sequence->num_computed_tokens(); ++i) {
      held(tier, table[i / block_size]).slots.at(i % block_size) = Slot::kToken;
    }
  }
}

// What is cached is full, whoever counts on how much of it.
SlowSnapshot::Held& SlowSnapshot::held(Tier tier, BlockId block) {
  const KVCacheManager& kv_cache = engine_->scheduler().kv_cache();
  const bool cached = (tier == Tier::kDevice ? kv_cache.device_pool() : kv_cache.host_pool()).is_cached(block);
  const auto size = static_cast<std::size_t>(kv_cache.block_size());
  return held_.try_emplace({tier, block}, Held{.holders = {}, .slots = {size, cached ? Slot::kToken : Slot::kNothing}})
      .first->second;
}

void SlowSnapshot::check_tier(const TierUse& use, Tier tier) {
  const std::int32_t block_size = engine_->scheduler().config().block_size;
  SlotSplit expected = {.num_slots = std::ssize(use.blocks) * block_size};
  for (BlockId block = 0; block < std::ssize(use.blocks); ++block) {
    const BlockUse& seen = use.blocks[block];
    check_name(seen, tier == Tier::kDevice ? block : engine_->scheduler().kv_cache().host_node(block));
    const auto there = held_.find({tier, block});
    if (there == held_.end()) {
      REQUIRE(seen.num_holders == 0);
      REQUIRE(use.holders_of(block).empty());
      REQUIRE(seen.num_tokens == (seen.cached ? block_size : 0));
      REQUIRE(seen.num_reserved == 0);
      REQUIRE_FALSE(seen.pinned);
      expected.free += block_size;
      expected.cached_free += seen.cached ? block_size : 0;
      continue;
    }
    const Held& block_held = there->second;
    const auto num_tokens = std::ranges::count(block_held.slots, Slot::kToken);
    const auto num_reserved_here = std::ranges::count(block_held.slots, Slot::kReserved);
    REQUIRE(seen.num_holders == std::ssize(block_held.holders));
    REQUIRE(std::ranges::equal(use.holders_of(block), block_held.holders));
    REQUIRE(seen.num_tokens == num_tokens);
    REQUIRE(seen.num_reserved == num_reserved_here);
    REQUIRE(seen.pinned == block_held.pinned);
    REQUIRE_FALSE(seen.quarantined);
    expected.token_states += num_tokens;
    expected.reserved += num_reserved_here;
    expected.internal_waste += std::ranges::count(block_held.slots, Slot::kNothing);
    expected.pinned += block_held.pinned ? block_size : 0;
    expected.saved += block_size * (std::ssize(block_held.holders) - 1);
  }
  REQUIRE(use.split == expected);
  const SlotSplit& split = use.split;
  REQUIRE(split.token_states + split.reserved + split.internal_waste + split.free == split.num_slots);
  REQUIRE(split.in_use() == split.num_slots - split.free);
  num_reserved += split.reserved;
  num_pinned += split.pinned;
  num_on_host += tier == Tier::kHost ? split.token_states : 0;
}

void SlowSnapshot::check_bills(const KVSnapshot& snapshot) const {
  REQUIRE(snapshot.pins.size() == pins_.size());
  std::int64_t num_charged = 0;
  std::int64_t num_saved = 0;
  const auto add = [&](const BlockBill& bill) {
    num_charged += bill.num_charged;
    num_saved += bill.num_saved();
  };
  for (const PinUse& use : snapshot.pins) {
    check_bill(use.bill, {PrefixPins::owner_of(use.pin.id)});
    add(use.bill);
  }
  const std::vector<GroupId> ids = engine_->groups();
  REQUIRE(snapshot.requests.size() == ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const RequestUse& use = snapshot.requests[i];
    const SequenceGroup& group = engine_->scheduler().group(ids[i]);
    REQUIRE(use.id == ids[i]);
    REQUIRE(use.state == group.state);
    REQUIRE(use.num_preemptions == group.num_preemptions);
    const PlainRequest& request = engine_->requests().all().at(ids[i]);
    REQUIRE(use.num_sequences == std::ssize(request.branches));
    REQUIRE(use.num_prompt_tokens == std::ssize(request.asked.prompt_token_ids));
    std::int64_t num_tokens = 0;
    for (const auto& [id, branch] : request.branches) {
      num_tokens += std::ssize(branch.tokens);
    }
    REQUIRE(use.num_tokens == num_tokens);
    REQUIRE(use.num_output_tokens == num_tokens - use.num_sequences * use.num_prompt_tokens);
    check_bill(use.bill, engine_->branches(ids[i]));
    add(use.bill);
  }
  REQUIRE(num_charged == std::ssize(held_));  // every block once
  REQUIRE(num_saved * snapshot.block_size == snapshot.device.split.saved + snapshot.host.split.saved);
}

void SlowSnapshot::check_bill(const BlockBill& bill, const std::vector<SequenceId>& owners) const {
  BlockBill expected;
  const auto is_own = [&](const BlockHolder& holder) { return std::ranges::count(owners, holder.owner) > 0; };
  for (const auto& [place, block] : held_) {
    const std::int64_t num_own = std::ranges::count_if(block.holders, is_own);
    expected.num_entries += num_own;
    expected.num_owned += num_own > 0 && num_own == std::ssize(block.holders) ? 1 : 0;
    expected.num_shared += num_own > 0 && num_own < std::ssize(block.holders) ? 1 : 0;
    expected.num_charged += is_own(block.holders.front()) ? 1 : 0;
  }
  REQUIRE(bill == expected);
}

// Who is taken, shared, given back or about to be written into was used in this step; nobody's last use goes back.
void SlowSnapshot::check_ages(const KVSnapshot& snapshot) {
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    const TierUse& use = tier == Tier::kDevice ? snapshot.device : snapshot.host;
    for (BlockId block = 0; block < std::ssize(use.blocks); ++block) {
      const BlockUse& seen = use.blocks[block];
      const std::span<const BlockHolder> span = use.holders_of(block);
      std::vector<BlockHolder> holders(span.begin(), span.end());
      std::ranges::sort(holders, {}, &BlockHolder::owner);  // live beams change places among themselves
      auto& [last_use, last_holders] = last_seen_[{tier, block}];
      REQUIRE((seen.last_use == last_use || seen.last_use == snapshot.step));
      CAPTURE(block);
      REQUIRE((seen.last_use == snapshot.step || (holders == last_holders && seen.num_reserved == 0)));
      last_use = seen.last_use;
      last_holders = holders;
    }
  }
}

void SlowSnapshot::check_name(const BlockUse& use, PrefixCache::Node node) {
  if (!use.cached) {
    REQUIRE(use.content_hash == 0);
    return;
  }
  PrefixCache::Node root = 0;
  const std::vector<TokenId> text = engine_->cache().text_of(node, root);
  const std::string& name = engine_->scheduler().kv_cache().prefix_cache().root_name(root);
  REQUIRE(names_->try_emplace({engine_->scheduler().config().block_size, name, text}, use.content_hash).first->second ==
          use.content_hash);
}

void SlowSnapshot::check_events(const KVSnapshot& snapshot) {
  const CacheEvents::Taken taken = engine_->take_cache_events();
  REQUIRE(taken.num_dropped == 0);
  for (const CacheEvent& event : taken.events) {
    switch (event.kind) {
      case CacheEvent::Kind::kStored:
        REQUIRE(followed_.emplace(event.hash, event.tier).second);
        REQUIRE((!event.parent_hash || followed_.contains(*event.parent_hash)));
        REQUIRE(event.num_tokens == snapshot.block_size);
        break;
      case CacheEvent::Kind::kRemoved:
        REQUIRE(followed_.at(event.hash) == event.tier);
        followed_.erase(event.hash);
        break;
      case CacheEvent::Kind::kMoved:
        REQUIRE(followed_.at(event.hash) != event.tier);
        followed_.at(event.hash) = event.tier;
        break;
      case CacheEvent::Kind::kCleared:
        followed_.clear();
        break;
    }
  }
  num_events += std::ssize(taken.events);
  std::map<std::uint64_t, Tier> cached;
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    for (const BlockUse& use : (tier == Tier::kDevice ? snapshot.device : snapshot.host).blocks) {
      REQUIRE((!use.cached || cached.emplace(use.content_hash, tier).second));
    }
  }
  REQUIRE(followed_ == cached);
}

}  // namespace fastpaged::test
