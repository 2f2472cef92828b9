// SequenceGroup: one request with its branches, scheduled, preempted and ended as one.
//
// A request for n samples is one sequence until its prompt is computed. Then n tokens are drawn from one row of logits,
// and each that does not end its sample at once goes on as a branch. Until then the branches are reserved: wherever
// running sequences are counted, they are counted.
//
// A request with beams has its live beams as branches, in order of rank. They may be fewer than its width, which is
// what it counts as all its life.
//
// Branches that share blocks form a fork tree. It is read off the block tables: two branches have as many tokens in
// common as their tables have leading blocks in common. Recomputing a preempted group rebuilds that tree, each shared
// node once, so that it never needs more blocks than it held.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "fastpaged/base/types.h"
#include "fastpaged/kv_cache/kv_cache_manager.h"
#include "fastpaged/request/sampling_params.h"
#include "fastpaged/request/stopping.h"
#include "fastpaged/scheduler/beam_search.h"
#include "fastpaged/scheduler/preemption_forecast.h"
#include "fastpaged/scheduler/sequence.h"

namespace fastpaged {

enum class GroupState : std::uint8_t {
  kWaiting,  // holds no blocks
  kRunning,
  kSwapped,  // its blocks are the host's
};

struct SequenceGroup {
  GroupId id = 0;
  std::int64_t arrival = 0;          // unique: who came first
  std::int32_t priority = 0;         // smaller is served first; 0 where priorities count for nothing
  bool aged = false;                 // served before all that have not aged, whatever their priority
  std::int64_t in_line_since = 0;    // while it waits or is swapped: how many plans there had been when it came in line
  std::int64_t num_passed_over = 0;  // plans made while it was in line, in terms that are over
  std::int64_t deadline = 0;         // ns; see NewRequest
  std::int64_t queue_deadline = 0;   // the same
  SamplingParams sampling;
  StopConditions stop;
  std::string cache_root;          // shares cached blocks with requests of the same one alone
  bool skip_prefix_cache = false;  // computes all of its prompt itself
  GroupState state = GroupState::kWaiting;
  std::vector<std::unique_ptr<Sequence>> sequences;  // never empty; plans point to them, so they stay where they are
  std::unique_ptr<BeamSearch> beams;                 // null: none
  bool awaits_stops = false;  // its beams have grown, and the outside has not said yet which of them hold a stop string
  std::int64_t num_preemptions = 0;
  std::int64_t num_tokens_recomputed = 0;   // of all its sequences, by the time they are
  std::int64_t num_blocks_swapped_out = 0;  // copied, not entries of tables
  std::int64_t num_blocks_swapped_in = 0;
  PreemptionStakes stakes;        // as it was preempted by cost, to be recomputed, until it is back
  std::uint64_t kept_until = 0;   // up to this step nobody preempts it for room: it had come back
  bool was_let_in = false;        // once at least
  std::int32_t num_reserved = 1;  // it counts as at least so many sequences
  std::int32_t num_branches = 1;  // there ever were

  // Its place among all groups: who is less is served first, and preempted last.
  [[nodiscard]] std::tuple<bool, std::int32_t, std::int64_t> rank() const {
    return {!aged, aged ? 0 : priority, arrival};
  }
  // Of beams: the search is over, whatever the outside may still say.
  [[nodiscard]] bool search_is_over() const { return beams->num_live() == 0 || (!awaits_stops && beams->over()); }
  [[nodiscard]] std::int64_t num_sequences() const { return static_cast<std::int64_t>(sequences.size()); }
  [[nodiscard]] std::int64_t num_counted() const { return std::max<std::int64_t>(num_reserved, num_sequences()); }
  // Tokens that a sequence which samples draws from its row: several while the request's samples have not parted.
  [[nodiscard]] std::int32_t num_draws() const { return beams != nullptr ? 1 : num_reserved; }
  // Every branch has just its last token to compute: the group samples one token for each, in the same step.
  [[nodiscard]] bool decodes() const;
  // Tokens of `sequence`, a branch of this group, that may be computed before the others are ready to decode.
  [[nodiscard]] std::int32_t num_prefill_tokens(const Sequence& sequence) const;
  [[nodiscard]] Sequence* find(SequenceId sequence_id) const;  // null if it is not here
  [[nodiscard]] std::vector<BlockTable*> tables() const;

  // Gives all blocks back and remembers the fork tree, to be recomputed.
  void forget_computed(KVCacheManager& kv_cache);
  // Branches that waited for what `parent` has computed by now take it over.
  void take_over_from(const Sequence& parent, const KVCacheManager& kv_cache);
  // Takes out a branch; the branches that waited for it find another way. REQUIRES: it is here.
  void erase(const Sequence& sequence, const KVCacheManager& kv_cache);

 private:
  void remember_fork_tree(std::int32_t block_size);
  void leave_to_children(const Sequence& sequence, const KVCacheManager& kv_cache);
};

}  // namespace fastpaged
