#include "fastpaged/scheduler/sequence_group.h"

#include <algorithm>
#include <ranges>

#include "fastpaged/base/check.h"

namespace fastpaged {

namespace {

// Computed tokens whose blocks both branches hold.
std::int32_t common_tokens(const Sequence& a, const Sequence& b, std::int32_t block_size) {
  const auto [in_a, in_b] = std::ranges::mismatch(a.table().blocks(), b.table().blocks());
  const std::int64_t common_blocks = in_a - a.table().blocks().begin();
  const std::int64_t computed = std::min(a.num_computed_tokens(), b.num_computed_tokens());
  return static_cast<std::int32_t>(std::min(common_blocks * block_size, computed));
}

}  // namespace

bool SequenceGroup::decodes() const {
  return std::ranges::all_of(sequences, [](const auto& sequence) { return sequence->num_uncomputed_tokens() == 1; });
}

std::int32_t SequenceGroup::num_prefill_tokens(const Sequence& sequence) const {
  if (sequence.rebuild().from != nullptr) {
    return 0;
  }
  return sequence.num_uncomputed_tokens() - (sequences.size() > 1 ? 1 : 0);
}

Sequence* SequenceGroup::find(SequenceId sequence_id) const {
  const auto found =
      std::ranges::find_if(sequences, [&](const auto& sequence) { return sequence->id() == sequence_id; });
  return found == sequences.end() ? nullptr : found->get();
}

std::vector<BlockTable*> SequenceGroup::tables() const {
  std::vector<BlockTable*> tables;
  tables.reserve(sequences.size());
  for (const auto& sequence : sequences) {
    tables.push_back(&sequence->table());
  }
  return tables;
}

void SequenceGroup::forget_computed(KVCacheManager& kv_cache) {
  remember_fork_tree(kv_cache.block_size());
  for (const auto& sequence : sequences | std::views::reverse) {
    sequence->forget_computed(kv_cache.make_table(sequence->id()));
  }
}

// Of the earlier branches, each one hangs on the one it shares most with. A branch that still waits for its parent
// holds nothing and keeps its place.
void SequenceGroup::remember_fork_tree(std::int32_t block_size) {
  for (std::size_t i = 1; i < sequences.size(); ++i) {
    Sequence& sequence = *sequences[i];
    std::int32_t most = 0;
    for (std::size_t j = 0; j < i && sequence.num_computed_tokens() > 0; ++j) {
      const std::int32_t common = common_tokens(sequence, *sequences[j], block_size);
      if (common > most) {
        most = common;
        sequence.rebuild_from(*sequences[j], common);
      }
    }
  }
}

void SequenceGroup::take_over_from(const Sequence& parent, const KVCacheManager& kv_cache) {
  for (const auto& child : sequences) {
    const Sequence::Rebuild& rebuild = child->rebuild();
    if (rebuild.from == &parent && rebuild.num_tokens <= parent.num_computed_tokens()) {
      child->take_over_from(parent, rebuild.num_tokens, kv_cache.blocks_for(rebuild.num_tokens));
    }
  }
}

void SequenceGroup::erase(const Sequence& sequence, const KVCacheManager& kv_cache) {
  const auto place = std::ranges::find_if(sequences, [&](const auto& other) { return other.get() == &sequence; });
  invariant(place != sequences.end(), "SequenceGroup: erasing a branch that is not here");
  leave_to_children(**place, kv_cache);
  sequences.erase(place);
}

// The child that shares most with the leaving branch takes its place, with what that one has. The others wait for the
// heir instead, and lose nothing: what they share with the leaving branch, the heir shares too.
void SequenceGroup::leave_to_children(const Sequence& sequence, const KVCacheManager& kv_cache) {
  Sequence* heir = nullptr;
  const auto waits = [&](const auto& child) { return child->rebuild().from == &sequence; };
  for (const auto& child : sequences | std::views::filter(waits)) {
    if (heir == nullptr || child->rebuild().num_tokens > heir->rebuild().num_tokens) {
      heir = child.get();
    }
  }
  if (heir == nullptr) {
    return;
  }
  const Sequence::Rebuild place = sequence.rebuild();
  if (place.from != nullptr) {
    heir->rebuild_from(*place.from, place.num_tokens);
  } else {
    const std::int32_t there = sequence.num_computed_tokens();
    heir->take_over_from(sequence, there, kv_cache.blocks_for(there));
  }
  for (const auto& child : sequences | std::views::filter(waits)) {
    child->rebuild_from(*heir, child->rebuild().num_tokens);
  }
}

}  // namespace fastpaged
