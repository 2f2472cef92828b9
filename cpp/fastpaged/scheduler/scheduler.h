// Scheduler: continuous batching. Each step is planned afresh as {sequence: num_tokens} under a token budget;
// prefill, chunked prefill, decode and recomputation are the same case.
//
//   plan   = schedule()            which tokens are computed now; grows block tables, preempts when it must
//   events = update(plan, tokens)  what came of it; frees what has ended
//
// First come, first served; with policy.by_priority it is by rank (SequenceGroup): who has aged, then by priority, then
// by arrival. Running groups that decode come first, then running prefills, then those in line, swapped or waiting,
// each in order. The first that may not enter stops the line: without priorities, requests have their first step in
// order of arrival. A group is let in when all its known tokens fit beside those of the running groups; blocks are
// taken only for the tokens of this step. When a running group cannot grow, the last of those that run is preempted
// whole: swapped to the host pool, or put back to wait, to be recomputed, whichever is cheaper or the policy says. With
// by_priority the first in line has the last that run preempted, too, for a place, for blocks or for tokens of the
// budget: those of a strictly worse priority that have not aged, no more than it takes, and none if it does not come in
// by that. How prompts share a step is in scheduler_shares.cc; what else policies do, in SchedulerPolicy.
//
// Rows of logits are a second budget. A sequence needs one to sample, and one for each of its prompt's tokens whose
// logprobs are wanted and not known yet (sequence.h). A row is kept for each of max_num_seqs, so that every sequence
// may go on by a token, and those in line come in, whatever prompts with logprobs take: they go on by more than a token
// in chunks cut, under any policy, to the rows above max_num_seqs, the first of them first.
//
// A group's branches decode in the same step or not at all. A sequence that the whole pool could not hold beside its
// siblings has reached its end: it finishes with kLength, and nobody is preempted for it.
//
// With prefix_caching, full blocks stay findable after their request, as long as nobody needs the room, and a group
// that comes in takes what it finds: the longest beginning that was computed before, under its cache_root, less its
// last token. It then needs room only for blocks that nobody holds. update() publishes what a step has computed, but
// not where a row failed: what the sequence then holds may be wrong, and is forgotten as far as nobody else holds it.
// Whoever lacks next a block that a prompt completed by this very plan will have waits a step for it, and the line with
// it; and so it does while a prompt that goes before it has but a share of each step, and is to compute that block.
//
// With host_prefix_tier, blocks that the device evicts go on being cached on the host, where swapped groups leave room,
// unless copying them out and in costs more than computing them (PreemptionCosts). A group that finds some needs room
// for them, and has them copied in as it comes in; the host's are free then. update() copies nothing, nor does pin().
//
// A request whose deadline has come by `now` ends before anything is planned, wherever it is, and so does one whose
// queue_deadline has come if it was never let in: of the two, the earlier one is the reason. It keeps what it has, has
// an event in plan.ended for each branch, the last with group_finished (of beams, which have no results, one in all),
// and never computes a token in a step of that time.
//
// A group that comes back after a preemption is kept over a window of steps (policy.resume_grace_steps). It is let in
// where there is room for all that it and those that run may take within the window, and while the window lasts nobody
// is let in who does not leave that room: within it nobody is preempted for room. Should a fork or a pin take that room
// all the same, the youngest that is not kept goes, and who is kept only if there is no other but the oldest.
//
// Pins hold such blocks without a request. They count as used, and yet keep nobody from running: a group that runs
// alone and lacks room has them released, the one unused for longest first.
//
// Invariants (check_invariants), beside those of the parts:
//   1. a group is in one queue, that of its state, and in no plan unless it runs;
//   2. running groups and pins hold device blocks, swapped groups host blocks, waiting ones none; every block's
//      reference count is the number of tables that hold it;
//   3. between steps each sequence has an uncomputed token and is below its limits.
// Liveness: while anything is unfinished, schedule() schedules at least one token or ends at least one sequence, unless
// all there is are results of beam searches that finish_beams() has ended. If no preemption is forced and every plan is
// updated, all are done after a bounded number of steps; sums are over all branches there ever were, output being the
// max_tokens of each:
//   one line (the default): running groups are older than all others, so the oldest group is never preempted, and each
//     step computes a token of it, or a branch's output token, or ends a branch: at most sum(prompt + 2 * output + 1);
//   swapped_before_waiting: each step does so for the oldest *running* group, a place that changes hands at most four
//     times per request: at most sum(output + 1) + 4 * requests * max(prompt + output, summed over a request's
//     branches). Without chunked_prefill that maximum is replaced by the number of branches, 0 for one.
//   by_priority: each step does so for the running group that is first in rank: until it ends, or the first of all
//   comes
//     in. Between two of the latter somebody has come, aged or ended. So again four times per request: the same bound.
// Ageing: who is in line while ageing_steps steps are planned, all told, ages. Then nobody passes it in line but those
// that have aged and came before it. So it is let in within ageing_steps + sum(output + 1) + 3 * requests * max(prompt
// + output), over those alone that run by then or came before it: as above, but nobody comes. Afterwards it is
// preempted for want of room alone, after all that have not aged. Shares change nothing in that, nor in the order of
// the line: of the prompts that run the first has at least a token of whatever decodes leave. Beside k < prefill_share
// others that are cut, whatever their length, a running prompt of S tokens goes on by a part of max(1, prefill_share /
// (k + 1)) a step, with a next in line 1 / (k + 2), and is cut no more when prefill_share are left: at most (S -
// prefill_share) / part + 1 steps, budget, rows and blocks permitting. The line waits a step for each that is cut
// before it. Windows change nothing in that: the oldest running
// group is never the one to go for room, and where nobody runs the first in line comes in, room or not. The prefix
// cache and pins change nothing either: who waits for a prefix waits while others run, and what is found need not be
// computed. Not thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fastpaged/kv_cache/kv_cache_manager.h"
#include "fastpaged/scheduler/kv_snapshot.h"
#include "fastpaged/scheduler/preemption_forecast.h"
#include "fastpaged/scheduler/prefix_pins.h"
#include "fastpaged/scheduler/quarantine.h"
#include "fastpaged/scheduler/request_queue.h"
#include "fastpaged/scheduler/scheduler_output.h"
#include "fastpaged/scheduler/scheduler_policy.h"
#include "fastpaged/scheduler/scheduler_stats.h"
#include "fastpaged/scheduler/sequence_group.h"
#include "fastpaged/scheduler/step_plan.h"
#include "fastpaged/scheduler/timetable.h"

namespace fastpaged {

struct SchedulerConfig {
  std::int32_t num_blocks = 0;
  std::int32_t block_size = 16;
  std::int32_t num_host_blocks = 0;  // for swapped groups, and for what the prefix cache evicts
  std::int32_t max_num_seqs = 256;
  std::int32_t max_num_batched_tokens = 2048;  // >= max_model_len without chunked_prefill
  std::int32_t max_model_len = 0;              // >= 2: a prompt token and an answer; may exceed the pool
  std::int32_t max_num_rows = 0;               // of logits in one step, >= max_num_seqs; 0 is no limit
  bool prefix_caching = false;
  std::int32_t max_pinned_blocks = 0;                  // of all pins together; 0 without prefix_caching
  std::uint64_t prefix_hash_mask = ~std::uint64_t{0};  // for tests: the bits of the prefix cache's hashes that count
  std::int64_t max_cache_events = 0;                   // kept until take_cache_events(); 0: none
  PreemptionCosts costs = {};                          // for PreemptionMode::kAuto, until set_costs()
  bool host_prefix_tier = false;  // cached blocks that are evicted go to the host pool, and are found there
  SchedulerPolicy policy = {};
};

// Points in time: nanoseconds of whatever clock the caller of schedule() has, which must not go back.
using Nanoseconds = std::int64_t;
inline constexpr Nanoseconds kNoDeadline = std::numeric_limits<Nanoseconds>::max();

struct NewRequest {
  GroupId id = 0;
  std::vector<TokenId> prompt_token_ids = {};
  SamplingParams sampling = {};
  StopConditions stop = {};
  std::string cache_root = {};     // a tenant's salt: cached blocks are shared under the same one alone
  bool skip_prefix_cache = false;  // takes nothing from the prefix cache; others may take from it
  std::int32_t num_samples = 1;    // answers to one prompt, drawn independently: sample i with mix(sampling.seed, i)
  std::int32_t priority = 0;       // smaller is served first, under SchedulerPolicy::by_priority
  Nanoseconds deadline = kNoDeadline;        // a schedule() from then on ends it, wherever it is
  Nanoseconds queue_deadline = kNoDeadline;  // a schedule() from then on ends it if it was never let in
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);  // throws std::invalid_argument naming the field
  // Throws std::invalid_argument: empty prompt, prompt above max_model_len - 1 or above what the pool can hold, a
  // negative token, id in use (until the event of its end is out), max_tokens < 1, sampling params out of range,
  // num_samples < 1, or it or the width of its beams more than can run together (max_num_seqs, max_num_batched_tokens).
  void add(NewRequest request);
  // Ends a request in any state and frees its blocks at once. False if it is not (or no longer) here.
  bool abort(GroupId id);
  // Ends one branch the same way, and with the last one its request. Of a beam: finish_beams().
  bool finish(GroupId id, SequenceId sequence_id);
  // These live beams become hypotheses as they are, named by their own ids; then it is asked whether the search is
  // over. If so, the next update() has its results. Ids that are not (or no longer) here are passed over; false if none
  // is. With BeamParams::has_stop_strings it is due after each update() that has live beams of the request, with no id
  // if none has stopped: before that the search ends only if no live beam is left. The next step may be planned
  // already.
  bool finish_beams(GroupId id, std::span<const SequenceId> sequence_ids);
  // A new branch with the tokens of this one, sharing its blocks. Throws std::invalid_argument unless the sequence is
  // here, running, no beam, and has just its last token to compute; its request's samples have not parted yet; a plan
  // is out; or one more branch is beyond max_num_seqs or max_num_batched_tokens.
  SequenceId fork(GroupId id, SequenceId sequence_id);
  // The next schedule() preempts this group before anything else, if it runs then, by `mode`. It may come back in the
  // same step. For tests and for operators; false if it is not here.
  bool preempt(GroupId id, PreemptionMode mode);
  // From now on; throws std::invalid_argument for a negative number or none.
  void set_costs(const PreemptionCosts& costs);
  // Ends every request at once, with no event. What is cached or pinned stays so.
  void reset();

  // Holds the cached blocks that these tokens fill under this root, and those to come, until unpin(). Returns how many
  // it holds by now. Throws std::invalid_argument, and changes nothing: an id in use or from 2^63 on, tokens that fill
  // no block, or more blocks than max_pinned_blocks leaves (naming need and have).
  std::int32_t pin(PinId id, std::vector<TokenId> token_ids, std::string cache_root = {});
  bool unpin(PinId id);                                                          // false if it is not here
  [[nodiscard]] std::vector<PinnedPrefix> pins() const { return pins_.list(); }  // in order of id
  // Nothing is cached any more, nor will be what is computed already or by a plan that is out. Requests go on; pins
  // stay, and hold nothing.
  void reset_prefix_cache();
  // Of running requests: entries of block tables, and blocks that they hold. The difference is what sharing saves.
  [[nodiscard]] std::int64_t num_logical_blocks() const;
  [[nodiscard]] std::int64_t num_physical_blocks() const;

  // A plan that was never updated is forgotten: its tokens are planned anew. Nobody knows whether its copies were run:
  // whoever has computed tokens where they wrote is recomputed, and what was cached there is forgotten.
  // now: see Nanoseconds; without it the time stands still. Throws std::invalid_argument if it goes back.
  [[nodiscard]] SchedulerOutput schedule(Nanoseconds now);
  [[nodiscard]] SchedulerOutput schedule() { return schedule(now_); }
  // results: plan.num_results of them, in plan order; of a score's only `ok` is looked at. Events of plan.ended come
  // first. A sequence that has gone since schedule() is passed over. A stop token is appended and reported like any
  // other. Where samples part, each has its event, in their order; one that its first token ends has an id of its own
  // all the same. Live beams grow together, with the events of scheduler_output.h. Throws std::invalid_argument, and
  // changes nothing, if the count differs from the plan's, or candidates of beams are missing, or the plan is not the
  // last.
  std::vector<SequenceEvent> update(const SchedulerOutput& plan, const SampledRows& results);
  std::vector<SequenceEvent> update(const SchedulerOutput& plan, std::span<const SampledToken> tokens) {
    return update(plan, SampledRows{.tokens = tokens});
  }

  [[nodiscard]] bool has_unfinished() const { return !groups_.empty() || !ended_.empty(); }
  [[nodiscard]] std::int32_t num_waiting() const { return static_cast<std::int32_t>(waiting_.size()); }
  [[nodiscard]] std::int32_t num_running() const { return static_cast<std::int32_t>(running_.size()); }
  [[nodiscard]] std::int32_t num_swapped() const { return static_cast<std::int32_t>(swapped_.size()); }
  [[nodiscard]] const SchedulerConfig& config() const { return config_; }
  [[nodiscard]] const SchedulerStats& stats() const { return stats_; }
  [[nodiscard]] const KVCacheManager& kv_cache() const { return kv_cache_; }
  [[nodiscard]] const SequenceGroup& group(GroupId id) const;  // throws std::invalid_argument
  // Also of one that has ended, at least until the update() after the one that has said so; else nothing.
  [[nodiscard]] RequestCost request_cost(GroupId id) const;
  [[nodiscard]] const StepPlan& plan() const { return plan_; }
  // What became of the prefix cache's contents since the last time; nothing without max_cache_events.
  [[nodiscard]] CacheEvents::Taken take_cache_events() { return kv_cache_.take_cache_events(); }
  // Read off the tables now: O(blocks + entries of tables), and with snapshot() the tokens of cached blocks.
  [[nodiscard]] KVSnapshot snapshot() const;
  struct SlotSplits {
    SlotSplit device, host;
  };
  [[nodiscard]] SlotSplits slot_splits() const;               // snapshot()'s alone, which is cheaper
  Quarantine quarantine();                                    // after a broken invariant: see quarantine.h
  [[nodiscard]] std::int32_t num_quarantined_blocks() const;  // of both tiers
  [[nodiscard]] bool references_add_up() const;               // the quick look before a step: see quarantine.h
  void check_references() const;                              // the look now and then: see there
  void check_invariants() const;

 private:
  // scheduler_planning.cc
  void plan_running();
  bool plan_decode(SequenceGroup& group);   // false: the group does not run any more
  bool plan_prefill(SequenceGroup& group);  // the same
  void let_in();
  // What running groups are counted on to take of the free blocks: in a step, or over a window of `steps` more.
  struct RunningNeeds {
    std::int32_t steps = 0;
    std::int64_t num_blocks = 0;
    std::int64_t most_branches = 0;  // of one of them
  };
  [[nodiscard]] SequenceGroup* next_in_line() const;
  [[nodiscard]] bool may_enter(const SequenceGroup& group, const RunningNeeds& running);
  bool enter(SequenceGroup& group);  // false: it does not run after all
  enum class Room : std::uint8_t { kThere, kSequenceEnded, kGroupGone };
  Room make_room(SequenceGroup& group, Sequence& sequence, std::int32_t num_tokens);
  bool make_room_per_branch(SequenceGroup& group);  // false: the group had to go itself
  Room end_at_ceiling(SequenceGroup& group, Sequence& sequence);
  [[nodiscard]] static std::int64_t num_held_blocks(const SequenceGroup& group);
  void count_copies(std::span<const BlockCopy> copies);

  // scheduler_prefixes.cc
  void look_up(const SequenceGroup& group);
  [[nodiscard]] PrefixMatch match_of(const SequenceGroup& group, const Sequence& sequence) const;
  [[nodiscard]] bool finds_room(const SequenceGroup& group, std::int64_t missing, std::int64_t spare);
  [[nodiscard]] bool computes_prefix_of(const SequenceGroup& group) const;
  void adopt_prefixes(SequenceGroup& group);
  void publish(const SequenceGroup& group, Sequence& sequence);
  bool publish_one(const SequenceGroup& group, Sequence& sequence);  // whether anything was new
  void release_pins_for(const SequenceGroup& swapped);

  // scheduler_tiers.cc
  void weigh_evictions();
  void distrust_copies();
  void count_moved_prefixes();
  [[nodiscard]] std::int64_t num_swap_copies() const;

  // scheduler_shares.cc
  struct Limits {  // of a plan in the making, or of one without some who are planned
    std::int32_t budget = 0;
    std::int32_t cut = 0;  // tokens of prompts that have only a share
    std::int32_t spare_rows = 0;
  };
  struct Chunk {
    std::int32_t num_tokens = 0;
    bool is_cut = false;
  };
  [[nodiscard]] bool shares_prefills() const {
    return config_.policy.prefill_share > 0 && config_.policy.chunked_prefill;
  }
  [[nodiscard]] std::int32_t most_tokens_at_once() const;
  void start_shares();
  void share_among_running();
  void share_among_line();
  [[nodiscard]] Limits plan_limits() const;
  [[nodiscard]] Chunk chunk_of(const SequenceGroup& group, const Sequence& sequence, const Limits& limits) const;
  [[nodiscard]] bool fits_plan(const SequenceGroup& group, const Limits& limits) const;
  void note_cut(SequenceGroup& group);
  void hand_out_rest();
  void hand_out_rest(SequenceGroup& group, Sequence& sequence, bool shares);

  // scheduler_priorities.cc
  struct Way {                       // what there is for the first in line, if some did not run any more
    std::int64_t num_sequences = 0;  // with its own
    std::int64_t num_free_blocks = 0;
    std::int64_t num_held_blocks = 0;   // by itself, on the host
    std::int64_t num_found_in_use = 0;  // of its own: on the device already, and held there
    Limits limits;
    std::unordered_map<BlockId, std::int32_t> found;       // how often
    std::unordered_map<BlockId, std::int32_t> given_back;  // by how many tables
  };
  [[nodiscard]] bool may_age(const SequenceGroup& group) const;
  [[nodiscard]] Timetable::Entry ageing_of(const SequenceGroup& group) const;
  void join_line(SequenceGroup& group);
  void leave_line(SequenceGroup& group);
  void age_line();
  bool make_way_for(const SequenceGroup& group);
  [[nodiscard]] Way way_of(const SequenceGroup& group) const;
  void clear_way(const SequenceGroup& victim, Way& way) const;
  [[nodiscard]] bool is_clear(const SequenceGroup& group, const Way& way, std::size_t num_running) const;

  // scheduler_deadlines.cc
  void set_deadlines(const SequenceGroup& group);
  void clear_deadlines(const SequenceGroup& group);
  void clear_queue_deadline(const SequenceGroup& group);
  void end_expired();
  void end_by_time(SequenceGroup& group, FinishReason reason);
  // scheduler_growth.cc
  [[nodiscard]] std::int64_t missing_blocks(const SequenceGroup& group, std::int32_t steps) const;
  [[nodiscard]] std::int64_t missing_blocks_to_come(const SequenceGroup& group, std::int32_t steps) const;
  [[nodiscard]] std::int32_t growth(const SequenceGroup& group, const Sequence& sequence, std::int32_t steps) const;
  [[nodiscard]] RunningNeeds needs_of_running(std::int32_t steps, std::size_t num_running) const;
  void add_needs(const SequenceGroup& group, RunningNeeds& needs) const;
  [[nodiscard]] std::int64_t blocks_beside(const SequenceGroup& group, const RunningNeeds& running) const;
  [[nodiscard]] std::int64_t more_blocks(const SequenceGroup& group, std::int32_t steps) const;
  [[nodiscard]] bool counts_needs(std::int32_t steps) const { return config_.policy.counts_running_needs || steps > 0; }
  [[nodiscard]] std::int32_t steps_kept(std::size_t num_running) const;
  [[nodiscard]] bool is_kept(const SequenceGroup& group) const { return group.kept_until >= plan_.step(); }
  [[nodiscard]] SequenceGroup& victim_for(const SequenceGroup& group) const;

  // scheduler_preemption.cc
  struct ForcedPreemption {
    GroupId id;
    PreemptionMode mode;
  };
  void preempt_as_told();
  void preempt_for_room(SequenceGroup& group);
  void move_out(SequenceGroup& group, PreemptionMode mode);
  [[nodiscard]] bool wants_swap(const SequenceGroup& group, PreemptionMode mode) const;
  [[nodiscard]] PreemptionStakes stakes_of(const SequenceGroup& group) const;

  [[nodiscard]] RequestQueue& queue_of(GroupState state);
  [[nodiscard]] const RequestQueue& queue_of(GroupState state) const;
  void change_state(SequenceGroup& group, GroupState state);
  void remove(SequenceGroup& group);                               // destroys it
  bool remove_sequence(SequenceGroup& group, Sequence& sequence);  // and with the last one the group: then true

  // scheduler_results.cc
  void take_planned(const PlannedSequence& planned, const SampledRows& results, std::int32_t first_result,
                    std::vector<SequenceEvent>& events);
  void take_results(const PlannedSequence& planned, std::span<const SampledToken> results, std::int32_t first_result,
                    std::vector<SequenceEvent>& events);
  void take_token(const SequenceGroup& group, const Sequence& sequence, TokenId token, SequenceEvent& event) const;
  void part_samples(SequenceGroup& group, const Sequence& parent, std::span<const SequenceEvent> others);

  // scheduler_beams.cc
  void require_candidates(const SampledRows& results) const;
  void take_candidates(const PlannedSequence& planned, const SampledRows& results, std::int32_t first_result,
                       std::vector<SequenceEvent>& events);
  void grow_beams(SequenceGroup& group, const SampledRows& results, std::vector<SequenceEvent>& events);
  void move_beams(SequenceGroup& group, std::span<const BeamSearch::Continuation> live);
  Room end_beam_at_ceiling(SequenceGroup& group, Sequence& sequence);
  void end_beam_search(SequenceGroup& group, std::vector<SequenceEvent>& events);

  // scheduler_snapshot.cc
  [[nodiscard]] std::vector<const SequenceGroup*> groups_by_arrival() const;
  [[nodiscard]] TierUse tier_use(Tier tier) const;
  void fill_slots(TierUse& use, Tier tier) const;
  void fill_holders(KVSnapshot& snapshot) const;
  void fill_hashes(KVSnapshot& snapshot) const;
  // scheduler_quarantine.cc
  struct Holders {  // of each block: how many tables list it
    std::vector<std::int32_t> on_device, on_host;
  };
  struct Broken {
    GroupId id = 0;
    std::string what;
  };
  static constexpr std::string_view kRefusedRelease = "Scheduler: a request that ended found one of its blocks free";
  static constexpr std::string_view kLostRunning = "Scheduler: lost count of the running sequences";
  [[nodiscard]] std::int64_t count_running_sequences() const;
  [[nodiscard]] bool all_released() const { return kv_cache_.num_refused_releases() == num_refused_releases_; }
  [[nodiscard]] bool is_broken(GroupId id) const;
  [[nodiscard]] Holders count_holders() const;
  void find_broken_groups(const KVCacheManager::Faults& faults);
  void find_broken_plans();
  void put_in_order();

  // scheduler_invariants.cc
  void check_group(const SequenceGroup& group) const;
  static void check_beams(const SequenceGroup& group);
  void check_deadlines() const;
  void check_rows() const;
  void check_blocks() const;

  SchedulerConfig config_;
  KVCacheManager kv_cache_;
  std::unordered_map<GroupId, SequenceGroup> groups_;  // after kv_cache_: their tables give blocks back to it
  PrefixPins pins_;                                    // the same
  RequestQueue waiting_;
  RequestQueue running_;
  RequestQueue swapped_;
  std::int64_t num_running_sequences_ = 0;
  std::int64_t num_watermark_blocks_ = 0;
  StepPlan plan_;
  std::int32_t cut_limit_ = 0;            // most tokens of prompts that have only a share of the plan in the making
  std::int32_t cut_part_ = 0;             // of these, of one group before the rest is handed out
  std::vector<SequenceGroup*> prefills_;  // those that run and do not decode, while they are planned
  std::vector<SequenceGroup*> cut_;       // planned for less than they could do, while others are
  std::vector<std::int32_t> beam_rows_;   // update()'s: results of those live beams of a group that it has passed
  // Of the plan in the making, and of the last one:
  std::vector<GroupId> preempted_;
  std::vector<GroupId> swapped_out_;
  std::vector<GroupId> swapped_in_;
  std::vector<GroupId> let_in_;
  std::vector<std::pair<GroupId, std::int32_t>> cached_;
  std::vector<BlockCopy> plan_copies_;
  std::vector<GroupId> kept_out_;  // preempted for want of room: not let in again by the same plan
  bool swapped_for_room_ = false;  // then no swapped group comes back by this plan

  // What the group that is about to enter would find in the prefix cache.
  struct Found {
    std::vector<PrefixMatch> matches;  // of each of its sequences
    std::int64_t num_in_use = 0;       // blocks
    std::int64_t num_tokens = 0;
  };
  Found found_;
  // Who did not fit last, what it had found, and what the cache had gained by then.
  struct Stalled {
    std::int64_t arrival;
    std::int64_t num_preemptions, num_sequences;  // with these its tokens may have changed
    bool operator==(const Stalled&) const = default;
  };
  std::optional<Stalled> stalled_;
  std::int64_t found_when_stalled_ = 0;
  std::uint64_t gains_when_stalled_ = 0;

  Timetable ageing_;  // of those in line, by steps
  Timetable deadlines_;
  Timetable queue_deadlines_;  // of those that were never let in
  std::vector<ForcedPreemption> forced_;
  // Of those that were preempted and have ended since the last update(), and before it, since the one before.
  std::unordered_map<GroupId, RequestCost> costs_of_ended_, costs_ended_before_;
  PreemptionForecast forecast_;
  std::vector<Broken> broken_;                // groups that an update() could not carry on, or a quarantine() found
  std::int64_t num_refused_releases_ = 0;     // of which quarantine() knows
  std::vector<SequenceEvent> spared_events_;  // of that update(), of the others
  std::vector<SequenceEvent> ended_;          // while planning, not reported yet
  SchedulerStats stats_;
  Nanoseconds now_ = 0;
  std::int64_t next_arrival_ = 0;
  SequenceId next_sequence_id_ = 0;
};

}  // namespace fastpaged
