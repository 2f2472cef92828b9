// Requests with beams: what they answer, whatever runs beside them, and what they hold.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "proof_scale.h"
#include "random.h"
#include "scheduler/beam_world.h"
#include "scheduler/examples.h"
#include "scheduler/random_requests.h"

namespace fastpaged::test {
namespace {

NewRequest beams(GroupId id, std::int32_t width, std::int32_t prompt, std::int32_t max_tokens,
                 std::vector<TokenId> stops = {}) {
  NewRequest wanted = request(id, prompt, max_tokens, std::move(stops));
  const auto num_ends = static_cast<std::int32_t>(wanted.stop.stop_token_ids.size());
  wanted.sampling.beam = {.width = width, .num_candidates = std::max(2, 1 + num_ends) * width};
  return wanted;
}

NewRequest random_beams(Random& random, GroupId id, const SchedulerConfig& config) {
  constexpr std::array kPenalties = {-1.0, 0.0, 0.6, 1.0, 1.4};
  NewRequest wanted = random_request(random, id, config);
  wanted.num_samples = 1;
  const std::int32_t widest = std::min({config.max_num_seqs, config.max_num_batched_tokens, 6});
  const std::int32_t width = random.between(1, widest);
  const auto num_ends = static_cast<std::int32_t>(wanted.stop.stop_token_ids.size());
  std::ranges::sort(wanted.stop.stop_token_ids);
  wanted.sampling.beam = {.width = width,
                          .length_penalty = random.one_of(kPenalties),
                          .early_stopping = static_cast<EarlyStopping>(random.between(0, 2)),
                          .num_candidates = std::max(2, 1 + num_ends) * width,
                          .has_stop_strings = random.once_in(2)};
  wanted.priority = random.between(-1, 2);
  return wanted;
}

NewRequest random_company(Random& random, GroupId id, const SchedulerConfig& config) {
  NewRequest wanted = random_request(random, id, config);
  wanted.priority = random.between(-1, 2);
  wanted.num_samples = 1;  // copies nothing
  return wanted;
}

using Candidates = std::vector<std::pair<TokenId, float>>;  // best first

// rows: of each result of the step.
std::vector<SequenceEvent> grow(Scheduler& scheduler, const SchedulerOutput& plan,
                                const std::vector<Candidates>& rows) {
  ToyAnswer answer;
  for (const Candidates& row : rows) {
    answer.tokens.push_back({row.empty() ? 0 : row[0].first, true});
    for (const auto& [token, logprob] : row) {
      answer.top_ids.push_back(token);
      answer.top_logprobs.push_back(logprob);
    }
    answer.top_offsets.push_back(static_cast<std::int32_t>(answer.top_ids.size()));
  }
  std::vector<SequenceEvent> events = scheduler.update(plan, answer.rows());
  scheduler.check_invariants();
  return events;
}

std::vector<SequenceEvent> grow(Scheduler& scheduler, const std::vector<Candidates>& rows) {
  return grow(scheduler, scheduler.schedule(), rows);
}

std::vector<SequenceId> ids(const Scheduler& scheduler, GroupId id) {
  std::vector<SequenceId> ids;
  for (const auto& sequence : scheduler.group(id).sequences) {
    ids.push_back(sequence->id());
  }
  return ids;
}

std::int64_t num_held(const Scheduler& scheduler) {
  return scheduler.kv_cache().num_blocks() - scheduler.kv_cache().num_free_blocks();
}

std::string refusal(Scheduler& scheduler, const NewRequest& request) {
  try {
    scheduler.add(request);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

const Candidates kThree = {{1, -1.0F}, {2, -2.0F}, {3, -3.0F}};

}  // namespace

TEST_CASE("beams share the prompt's blocks, and copy the last one if it is filled in part: one less than there are") {
  for (const std::int32_t prompt : {6, 8}) {
    Scheduler scheduler(roomy());
    scheduler.add(beams(1, 3, prompt, 9));
    grow(scheduler, {kThree});
    CHECK(num_held(scheduler) == 2);
    const SchedulerOutput plan = scheduler.schedule();
    CHECK(plan.num_rows == 3);
    CHECK(num_blocks(plan, CopyKind::kCopyOnWrite) == (prompt == 6 ? 2 : 0));
    CHECK(num_held(scheduler) == (prompt == 6 ? 1 + 3 : 2 + 3));
    grow(scheduler, plan, {kThree, kThree, kThree});  // 1 1, 1 2, 2 1: the third is given up
    const SchedulerOutput next = scheduler.schedule();
    CHECK(num_blocks(next, CopyKind::kCopyOnWrite) == 1);
    CHECK(num_held(scheduler) == (prompt == 6 ? 1 + 3 : 2 + 3));
    scheduler.abort(1);
    CHECK(num_held(scheduler) == 0);
  }
}

TEST_CASE("a beam's best continuation keeps its name and blocks, others are forks, and a beam without any goes") {
  Scheduler scheduler(roomy());
  scheduler.add(beams(1, 3, 4, 9));
  grow(scheduler, {kThree});
  const std::vector<SequenceId> before = ids(scheduler, 1);
  const SchedulerOutput plan = scheduler.schedule();
  std::vector<std::vector<BlockId>> blocks;
  for (const auto& sequence : scheduler.group(1).sequences) {
    blocks.emplace_back(sequence->table().blocks().begin(), sequence->table().blocks().end());
  }
  // Sums: -9 for each of the first's, -2.5 and -3.5 of the second's, -3.25 of the third's.
  const std::vector<SequenceEvent> events =
      grow(scheduler, plan, {{{7, -8.0F}}, {{5, -0.5F}, {6, -1.5F}}, {{4, -0.25F}}});
  const std::vector<SequenceId> after = ids(scheduler, 1);
  REQUIRE(after.size() == 3);
  CHECK(after[0] == before[1]);
  CHECK(after[1] == before[2]);
  CHECK(std::ranges::count(before, after[2]) == 0);
  const auto& sequences = scheduler.group(1).sequences;
  CHECK(std::ranges::equal(sequences[0]->table().blocks(), blocks[1]));
  CHECK(std::ranges::equal(sequences[1]->table().blocks(), blocks[2]));
  CHECK(std::ranges::equal(sequences[2]->table().blocks(), blocks[1]));

  REQUIRE(events.size() == 3);
  const std::vector<SequenceId> parents = {before[1], before[2], before[1]};
  const std::vector<double> sums = {-2.5, -3.25, -3.5};
  const std::vector<TokenId> tokens = {5, 4, 6};
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CHECK(events[rank].kind == EventKind::kBeam);
    CHECK(events[rank].sequence_id == after[rank]);
    CHECK(events[rank].parent_id == parents[rank]);
    CHECK(std::cmp_equal(events[rank].branch, rank));
    CHECK(events[rank].score == sums[rank]);
    CHECK(events[rank].token_id == tokens[rank]);
    CHECK(events[rank].sample_row == (rank == 1 ? 2 : 1));
    CHECK_FALSE(events[rank].finished);
  }
}

TEST_CASE("results name hypotheses, best first, and the last of them ends the request") {
  Scheduler scheduler(roomy());
  scheduler.add(beams(1, 2, 4, 2, {9}));
  std::vector<SequenceEvent> events = grow(scheduler, {{{1, -1.0F}, {9, -2.0F}, {2, -3.0F}}});
  REQUIRE(events.size() == 3);
  CHECK(events[0].kind == EventKind::kHypothesis);
  CHECK(events[0].finish_reason == FinishReason::kStop);
  const SequenceId first = events[0].sequence_id;
  CHECK(events[1].kind == EventKind::kBeam);

  events = grow(scheduler, {{{5, -0.5F}}, {{6, -4.0F}}});  // the longest length
  REQUIRE(events.size() == 3);
  CHECK(events[0].kind == EventKind::kHypothesis);
  CHECK(events[0].finish_reason == FinishReason::kLength);
  CHECK(events[1].kind == EventKind::kResult);
  CHECK(events[1].sequence_id == events[0].sequence_id);
  CHECK(events[1].score == -1.5 / 2);
  CHECK_FALSE(events[1].group_finished);
  CHECK(events[2].kind == EventKind::kResult);
  CHECK(events[2].sequence_id == first);
  CHECK(events[2].score == -2.0);
  CHECK(events[2].branch == 1);
  CHECK(events[2].finish_reason == FinishReason::kStop);
  CHECK(events[2].group_finished);
  CHECK_FALSE(scheduler.has_unfinished());
  CHECK(num_held(scheduler) == 0);
}

TEST_CASE("a beam that is ended from outside is a hypothesis of its own name; if it was the last, results come next") {
  Scheduler scheduler(roomy());
  scheduler.add(beams(1, 2, 4, 9));
  grow(scheduler, {kThree});
  const std::vector<SequenceId> live = ids(scheduler, 1);
  CHECK(scheduler.finish(1, live[0]));
  CHECK_FALSE(scheduler.finish(1, live[0]));
  scheduler.check_invariants();
  CHECK(ids(scheduler, 1) == std::vector<SequenceId>{live[1]});
  CHECK(scheduler.finish(1, live[1]));
  scheduler.check_invariants();
  CHECK(num_held(scheduler) == 0);
  CHECK(scheduler.has_unfinished());
  CHECK(refusal(scheduler, request(1, 3, 3)) == "group_id 1 is in use: ids must be unique among unfinished requests");
  const SchedulerOutput plan = scheduler.schedule();
  CHECK(plan.num_tokens == 0);
  const std::vector<SequenceEvent> events = grow(scheduler, plan, {});
  REQUIRE(events.size() == 2);
  CHECK(events[0].sequence_id == live[0]);
  CHECK(events[0].score == -1.0);
  CHECK(events[1].sequence_id == live[1]);
  CHECK(events[1].group_finished);
  CHECK_FALSE(scheduler.has_unfinished());
}

TEST_CASE("beams that a stop string ends in one step are hypotheses together, even beside an end token that would do") {
  for (const bool with_end_token : {false, true}) {
    NewRequest wanted = beams(1, 2, 4, 9, {9});
    wanted.sampling.beam->early_stopping = EarlyStopping::kYes;
    wanted.sampling.beam->has_stop_strings = true;
    Scheduler scheduler(roomy());
    scheduler.add(wanted);
    grow(scheduler, {{{9, -8.0F}, {1, -9.0F}, {2, -10.0F}}});  // a hypothesis that is worse than all to come
    CHECK_FALSE(scheduler.finish_beams(1, {}));
    grow(scheduler, {with_end_token ? Candidates{{9, -1.0F}, {1, -2.0F}} : Candidates{{1, -2.0F}}, {{2, -2.0F}}});
    const std::vector<SequenceId> live = ids(scheduler, 1);
    REQUIRE(live.size() == 2);
    const SchedulerOutput plan = scheduler.schedule();  // the next step does not wait for them
    CHECK(plan.num_samples == 2);
    CHECK(scheduler.finish_beams(1, live));
    scheduler.check_invariants();
    CHECK_FALSE(scheduler.finish_beams(1, live));
    const std::vector<SequenceEvent> events = grow(scheduler, plan, {{}, {}});
    REQUIRE(events.size() == 2);
    CHECK(events[0].score == (with_end_token ? -5.0 : -5.5));
    CHECK(events[1].score == (with_end_token ? -5.5 : -6.0));
    CHECK(events[1].sequence_id == live[with_end_token ? 0 : 1]);
    CHECK_FALSE(scheduler.has_unfinished());
  }
}

TEST_CASE("a search that waits for stop strings ends without them when no beam is left") {
  NewRequest wanted = beams(1, 2, 4, 2);
  wanted.sampling.beam->has_stop_strings = true;
  Scheduler scheduler(roomy());
  scheduler.add(wanted);
  grow(scheduler, {kThree});
  scheduler.finish_beams(1, {});
  const std::vector<SequenceEvent> events = grow(scheduler, {kThree, kThree});  // the longest length
  CHECK(events.back().group_finished);
  CHECK_FALSE(scheduler.has_unfinished());
}

TEST_CASE("a row that is not ok fails the whole search, and no other") {
  Scheduler scheduler(roomy());
  scheduler.add(beams(1, 2, 4, 9));
  scheduler.add(beams(2, 2, 4, 9));
  grow(scheduler, {kThree, kThree});
  ToyAnswer answer;
  answer.tokens = {{0, true}, {0, false}, {1, true}, {1, true}};
  answer.top_offsets = {0, 0, 0, 1, 2};
  answer.top_ids = {1, 1};
  answer.top_logprobs = {-1.0F, -1.0F};
  const std::vector<SequenceId> live = ids(scheduler, 1);
  const std::vector<SequenceEvent> events = scheduler.update(scheduler.schedule(), answer.rows());
  scheduler.check_invariants();
  REQUIRE(events.size() == 3);
  CHECK(events[0].kind == EventKind::kSample);
  CHECK(events[0].sequence_id == live[1]);
  CHECK(events[0].finish_reason == FinishReason::kError);
  CHECK(events[0].group_finished);
  CHECK(events[1].group_id == 2);
  CHECK(events[1].kind == EventKind::kBeam);
  CHECK(scheduler.group(2).num_sequences() == 2);
}

TEST_CASE("of a search that fails nothing is found in the prefix cache") {
  SchedulerConfig config = roomy();
  config.prefix_caching = true;
  Scheduler scheduler(config);
  scheduler.add(beams(1, 2, 9, 9));
  grow(scheduler, {kThree});
  CHECK(scheduler.kv_cache().prefix_cache().num_cached() == 2);
  ToyAnswer answer;
  answer.tokens = {{0, true}, {0, false}};
  answer.top_offsets = {0, 0, 0};
  scheduler.update(scheduler.schedule(), answer.rows());
  scheduler.check_invariants();
  CHECK(scheduler.kv_cache().prefix_cache().num_cached() == 0);
  CHECK(num_held(scheduler) == 0);
}

TEST_CASE("a search without any continuation or hypothesis ends with an error; with one, that is its result") {
  for (const bool with_hypothesis : {false, true}) {
    Scheduler scheduler(roomy());
    scheduler.add(beams(1, 2, 4, 9, {9}));
    grow(scheduler, {with_hypothesis ? Candidates{{9, -1.0F}, {1, -2.0F}} : Candidates{{1, -2.0F}}});
    CHECK(scheduler.group(1).num_sequences() == 1);
    const std::vector<SequenceEvent> events = grow(scheduler, {{}});
    REQUIRE(events.size() == 1);
    CHECK(events[0].kind == (with_hypothesis ? EventKind::kResult : EventKind::kSample));
    CHECK(events[0].finish_reason == (with_hypothesis ? FinishReason::kStop : FinishReason::kError));
    CHECK(events[0].group_finished);
    CHECK_FALSE(scheduler.has_unfinished());
  }
}

TEST_CASE("beams count as their width all their life, however many live") {
  SchedulerConfig config = roomy();
  config.max_num_seqs = 4;
  Scheduler scheduler(config);
  scheduler.add(beams(1, 3, 4, 9));
  scheduler.add(beams(2, 2, 4, 9));
  scheduler.add(request(3, 2, 9));
  CHECK(rows(scheduler.schedule()) == Rows{{1, 0, 4}});
  grow(scheduler, {kThree});
  scheduler.finish(1, ids(scheduler, 1)[1]);
  scheduler.finish(1, ids(scheduler, 1)[1]);
  CHECK(rows(scheduler.schedule()) == Rows{{1, 4, 1}});
  scheduler.abort(1);
  CHECK(rows(scheduler.schedule()) == Rows{{2, 0, 4}, {3, 0, 2}});
}

TEST_CASE("beams that can never run are refused, naming what is allowed") {
  SchedulerConfig config = roomy();
  config.max_num_seqs = 3;
  Scheduler scheduler(config);
  CHECK(refusal(scheduler, beams(1, 4, 4, 9)) ==
        "beam_width must be <= max_num_seqs = 3 and <= max_num_batched_tokens = 64, got 4");
  CHECK(refusal(scheduler, beams(1, 0, 4, 9)) == "beam_width must be > 0, got 0");
  NewRequest wanted = beams(1, 2, 4, 9);
  wanted.num_samples = 2;
  CHECK(refusal(scheduler, wanted) == "num_samples must be 1 with beams, got 2");
  wanted = beams(1, 2, 4, 9);
  wanted.sampling.beam->num_candidates = 3;
  CHECK(refusal(scheduler, wanted) == "num_candidates must be >= 2 x beam_width, got 3");
  wanted.sampling.beam->num_candidates = 4;
  wanted.sampling.beam->length_penalty = std::numeric_limits<double>::infinity();
  CHECK(refusal(scheduler, wanted) == "length_penalty must be finite, got inf");

  scheduler.add(beams(1, 2, 4, 9));
  CHECK_THROWS_WITH_AS(answer(scheduler, scheduler.schedule()),
                       "top_offsets must have one entry more than tokens = 1 where there are beams, got 0",
                       std::invalid_argument);
  grow(scheduler, {kThree});
  CHECK_THROWS_WITH_AS(scheduler.fork(1, 0), "sequence 0 of group_id 1 cannot be forked: it is a beam",
                       std::invalid_argument);
}

TEST_CASE("the prompt's scores come before the first beams, in an event of their own") {
  Scheduler scheduler(roomy());
  NewRequest wanted = beams(1, 2, 3, 9);
  wanted.sampling.num_prompt_logprobs = 0;
  scheduler.add(wanted);
  const std::vector<SequenceEvent> events = grow(scheduler, {{}, {}, kThree});
  REQUIRE(events.size() == 3);
  CHECK(events[0].kind == EventKind::kSample);
  CHECK(events[0].num_scores == 2);
  CHECK_FALSE(events[0].has_token);
  CHECK_FALSE(events[0].finished);
  CHECK(events[1].kind == EventKind::kBeam);
  CHECK(events[1].sample_row == 2);
}

TEST_CASE("beams are those of a slow search of their own, whatever runs, preempts, is lost or ends beside them") {
  std::int64_t num_searches = 0;
  std::int64_t num_stopped = 0;
  std::int64_t num_together = 0;
  std::int64_t num_ceilings = 0;
  std::int64_t num_copies = 0;
  std::int64_t num_preemptions = 0;
  for (int seed = 0; seed < 300 * proof_scale(); ++seed) {
    CAPTURE(seed);
    Random random(static_cast<std::uint32_t>(seed));
    SchedulerConfig config = random_config(random, random_policy(random));
    config.num_blocks += random.between(0, 20);
    BeamWorld world(config, random.once_in(3), random.once_in(2) ? random.between(5, 30) : 0);
    GroupId next_id = 0;
    for (int operation = 0; operation < 60; ++operation) {
      const GroupId some_id = static_cast<GroupId>(random.between(0, static_cast<std::int32_t>(next_id)));
      switch (random.between(0, 9)) {
        case 0:
        case 1:
          world.add(random_beams(random, next_id, config));
          ++next_id;
          break;
        case 2:
          world.add(random_company(random, next_id, config));
          ++next_id;
          break;
        case 3:
          static_cast<void>(world.scheduler.preempt(some_id, random_mode(random)));
          break;
        case 4:
          if (random.once_in(4)) {
            world.abort(some_id);
          } else {
            static_cast<void>(world.schedule());  // is never carried out
          }
          break;
        default:
          world.step(random.once_in(2));
      }
    }
    for (int step = 0; world.scheduler.has_unfinished(); ++step) {
      REQUIRE(step < 5000);
      world.step(random.once_in(2));
    }
    REQUIRE(world.scheduler.kv_cache().num_free_blocks() == config.num_blocks);
    num_searches += world.num_searches;
    num_stopped += world.num_stopped;
    num_together += world.num_together;
    num_ceilings += world.num_ceilings;
    num_copies += world.num_copies;
    num_preemptions += world.scheduler.stats().num_preemptions;
  }
  CHECK(num_searches > 1000);
  CHECK(num_stopped > 300);
  CHECK(num_together > 10);
  CHECK(num_ceilings > 100);
  CHECK(num_copies > 1000);
  CHECK(num_preemptions > 300);
}

}  // namespace fastpaged::test
