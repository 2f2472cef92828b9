// BeamWorld: beam searches on a scheduler and a toy model, each held against the slow search of its own, step by step,
// whatever runs beside it. It hears of them as the outside does, by events alone, and ends beams of which it does not
// like the tokens, at once or when the next step is under way already: one by one, or all of a step together.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "fastpaged/scheduler/batch_builder.h"
#include "fastpaged/scheduler/scheduler.h"
#include "random.h"
#include "scheduler/slow_beam_search.h"
#include "scheduler/toy_model.h"

namespace fastpaged::test {

// The sampler's answer to a step of the toy model.
struct ToyAnswer {
  std::vector<SampledToken> tokens;
  std::vector<std::int32_t> top_offsets = {0};
  std::vector<TokenId> top_ids;
  std::vector<float> top_logprobs;

  void add(const SampleRequest& request, const std::vector<TokenId>& context, bool holes) {
    tokens.push_back({next_token(context, voice_of(request.params.seed, request.sample_index)), true});
    if (request.params.beam && !request.given) {
      const std::vector<float> logprobs = toy_logprobs(context, kVocabSize, holes);
      std::vector<TokenId> best = best_first(logprobs);
      best.resize(std::min<std::size_t>(best.size(), request.params.beam->num_candidates));
      for (const TokenId id : best) {
        top_ids.push_back(id);
        top_logprobs.push_back(logprobs[id]);
      }
    }
    top_offsets.push_back(static_cast<std::int32_t>(top_ids.size()));
  }

  [[nodiscard]] SampledRows rows() const { return {tokens, top_offsets, top_ids, top_logprobs}; }
};

class BeamWorld {
 public:
  // stop_once_in: about so many beams have a token that the outside ends them at; 0: none.
  BeamWorld(const SchedulerConfig& config, bool holes, std::int32_t stop_once_in)
      : scheduler(config),
        builder_(scheduler),
        model_(scheduler.kv_cache()),
        holes_(holes),
        stop_once_in_(stop_once_in) {}

  // With beams or, as company, without.
  void add(const NewRequest& request) {
    scheduler.add(request);
    scheduler.check_invariants();
    if (request.sampling.beam) {
      const auto most = scheduler.config().max_model_len - static_cast<std::int32_t>(request.prompt_token_ids.size());
      Told& told = told_[request.id];
      told.prompt = request.prompt_token_ids;
      told.slow = {.params = *request.sampling.beam,
                   .max_length = std::min(request.stop.max_tokens, most),
                   .end_tokens = request.stop.stop_token_ids};
      told.live = {{scheduler.group(request.id).sequences[0]->id(), {}}};
    }
  }

  void abort(GroupId id) {
    if (scheduler.abort(id)) {
      told_.erase(id);
    }
    scheduler.check_invariants();
  }

  SchedulerOutput schedule() {
    const std::int64_t partial_before = scheduler.stats().num_partial_prefix_blocks;
    SchedulerOutput plan = scheduler.schedule();
    scheduler.check_invariants();
    note_ceilings(plan);
    check_copies(plan, scheduler.stats().num_partial_prefix_blocks - partial_before);
    return plan;
  }

  void carry_out(const SchedulerOutput& plan) {
    model_.copy(plan.copies);
    model_.poison_free_blocks(scheduler.kv_cache());
    const Batch& batch = builder_.build(plan);
    const std::vector<std::vector<TokenId>> contexts = model_.compute(batch);
    ToyAnswer answer;
    for (const SampleRequest& request : builder_.sample_requests()) {
      answer.add(request, contexts.at(request.row), holes_);
    }
    end_late_ones();
    const std::vector<SequenceEvent> events = scheduler.update(plan, answer.rows());
    scheduler.check_invariants();
    hear(events);
  }

  // ends_late: beams that are to end now end when the next step is under way.
  void step(bool ends_late = false) {
    carry_out(schedule());
    find_stops(ends_late);
  }

  void find_stops(bool late) {
    for (auto& [id, told] : told_) {
      for (const auto& [beam, tokens] : told.live) {
        if (!told.live_ends_with_stop(tokens, stop_once_in_)) {
          continue;
        }
        late_.emplace_back(id, beam);
      }
    }
    if (!late) {
      end_late_ones();
    }
  }

  Scheduler scheduler;
  std::int64_t num_searches = 0;  // that were over
  std::int64_t num_hypotheses = 0;
  std::int64_t num_ceilings = 0;
  std::int64_t num_stopped = 0;
  std::int64_t num_together = 0;  // steps of a search in which several were
  std::int64_t num_copies = 0;

 private:
  using Beam = std::pair<SequenceId, std::vector<TokenId>>;

  struct Told {
    std::vector<TokenId> prompt;
    SlowBeamSearch slow;
    std::vector<Beam> live;  // in order of rank
    std::map<SequenceId, std::vector<TokenId>> hypotheses = {};
    std::vector<SequenceEvent> results = {};
    bool awaits_stops = false;  // the slow search has grown, and the outside has not said yet which beams have stopped

    [[nodiscard]] bool over() const { return slow.live.empty() || (!awaits_stops && slow.over()); }

    static bool live_ends_with_stop(const std::vector<TokenId>& tokens, std::int32_t once_in) {
      std::uint32_t hash = 7;
      for (const TokenId token : tokens) {
        hash = (hash ^ static_cast<std::uint32_t>(token)) * 2654435761U;
      }
      return once_in > 0 && !tokens.empty() && (hash >> 7U) % static_cast<std::uint32_t>(once_in) == 0;
    }

    // A live beam is a hypothesis now, if it is good enough for that.
    void finish(SequenceId id) {
      const auto beam = std::ranges::find(live, id, &Beam::first);
      REQUIRE(beam != live.end());
      const auto rank = beam - live.begin();
      hypotheses[id] = beam->second;
      live.erase(beam);
      const SlowBeam finished = slow.live.at(rank);
      slow.live.erase(slow.live.begin() + rank);
      slow.finish(finished);
    }
  };

  void end_late_ones() {
    end_together();
    for (const auto& [id, beam] : std::exchange(late_, {})) {
      const auto told = told_.find(id);
      const bool lives = told != told_.end() && std::ranges::count(told->second.live, beam, &Beam::first) > 0;
      const bool here = lives && !told->second.over();
      REQUIRE(scheduler.finish(id, beam) == here);
      scheduler.check_invariants();
      if (here) {
        told->second.finish(beam);
        ++num_stopped;
        check_live(id, told->second);
      }
    }
  }

  // Those of searches that wait for it: all of a step.
  void end_together() {
    for (auto& [id, told] : told_) {
      if (!told.awaits_stops || told.over()) {
        continue;
      }
      std::vector<SequenceId> stopped;
      for (const auto& [late, beam] : late_) {
        if (late == id && std::ranges::count(told.live, beam, &Beam::first) > 0) {
          stopped.push_back(beam);
        }
      }
      std::erase_if(late_, [wanted = id](const auto& late) { return late.first == wanted; });
      REQUIRE(scheduler.finish_beams(id, stopped) == !stopped.empty());
      scheduler.check_invariants();
      std::ranges::for_each(stopped, [&, &told = told](SequenceId beam) { told.finish(beam); });
      num_stopped += std::ssize(stopped);
      num_together += stopped.size() > 1 ? 1 : 0;
      told.awaits_stops = false;
      check_live(id, told);
    }
  }

  // Beams that have gone while planning had reached the end of the pool.
  void note_ceilings(const SchedulerOutput& plan) {
    for (auto& [id, told] : told_) {
      if (told.over()) {
        continue;
      }
      std::vector<SequenceId> gone;
      for (const Beam& beam : told.live) {
        const auto reported = [&, first = beam.first](const SequenceEvent& event) {
          return event.kind == EventKind::kHypothesis && event.sequence_id == first;
        };
        const bool is_there = num_live(id) > 0 && scheduler.group(id).find(beam.first) != nullptr;
        if (!is_there && (num_live(id) > 0 || std::ranges::any_of(plan.ended, reported))) {
          gone.push_back(beam.first);
        }
      }
      for (const SequenceId beam : gone) {
        told.finish(beam);
        ++num_ceilings;
      }
      if (num_live(id) > 0) {
        check_live(id, told);
      } else if (!told.over()) {
        // Beams that were no better than the hypotheses have ended unheard of, and without them there is nothing left
        // that could be.
        REQUIRE(std::ranges::any_of(told.slow.live, [&](const SlowBeam& beam) { return !told.slow.keeps(beam); }));
        told.slow.live.clear();
        REQUIRE(told.over());
      }
    }
  }

  void check_copies(const SchedulerOutput& plan, std::int64_t num_partial) {
    std::int64_t copied = -num_partial;
    for (const BlockCopy& copy : plan.copies) {
      copied += copy.kind == CopyKind::kCopyOnWrite ? copy.num_blocks : 0;
    }
    std::int64_t most = 0;
    for (const auto& [id, told] : told_) {
      const bool planned = std::ranges::count(plan.scheduled, id, &ScheduledSequence::group_id) > 0 ||
                           std::ranges::count(plan.preempted, id) > 0 || num_live(id) == 0;
      most += planned ? std::ssize(told.live) : 0;
    }
    REQUIRE(copied <= most);
    num_copies += copied;
  }

  void hear(const std::vector<SequenceEvent>& events) {
    for (auto& [id, told] : told_) {
      std::vector<SequenceEvent> own;
      std::ranges::copy_if(events, std::back_inserter(own),
                           [wanted = id](const SequenceEvent& event) { return event.group_id == wanted; });
      hear(id, told, own);
    }
    std::erase_if(told_, [](const auto& entry) { return !entry.second.results.empty(); });
  }

  void hear(GroupId id, Told& told, const std::vector<SequenceEvent>& events) {
    std::vector<Beam> next;
    bool grows = false;
    std::map<SequenceId, std::vector<TokenId>> finished;
    for (const SequenceEvent& event : events) {
      REQUIRE((event.kind != EventKind::kSample || (!event.has_token && !event.finished && event.num_scores > 0)));
      if (event.kind == EventKind::kResult) {
        told.results.push_back(event);
      }
      if (!event.has_token) {
        continue;
      }
      grows = true;
      const auto parent = std::ranges::find(told.live, event.parent_id, &Beam::first);
      REQUIRE(parent != told.live.end());
      std::vector<TokenId> tokens = parent->second;
      tokens.push_back(event.token_id);
      if (event.kind == EventKind::kBeam) {
        REQUIRE(event.branch == std::ssize(next));
        next.emplace_back(event.sequence_id, tokens);
      } else {
        REQUIRE(event.kind == EventKind::kHypothesis);
        REQUIRE(event.finished);
        finished[event.sequence_id] = tokens;
      }
    }
    if (grows || (!told.results.empty() && !told.over())) {  // nothing that grew may have been good enough
      grow_slowly(told);
      told.live = next;
    }
    told.hypotheses.merge(finished);
    if (told.results.empty()) {
      check_live(id, told);
    } else {
      check_results(told);
    }
  }

  void grow_slowly(Told& told) {
    std::vector<std::vector<float>> rows;
    for (const SlowBeam& beam : told.slow.live) {
      std::vector<TokenId> context = told.prompt;
      context.insert(context.end(), beam.tokens.begin(), beam.tokens.end());
      rows.push_back(toy_logprobs(context, kVocabSize, holes_));
    }
    told.slow.grow(rows);
    told.awaits_stops = told.slow.params.has_stop_strings;
  }

  [[nodiscard]] std::int64_t num_live(GroupId id) const {
    try {
      return scheduler.group(id).num_sequences();
    } catch (const std::invalid_argument&) {
      return 0;
    }
  }

  // What the outside has heard, the slow search and the scheduler agree on the live beams.
  void check_live(GroupId id, const Told& told) const {
    if (told.over()) {
      REQUIRE(num_live(id) == 0);
      return;
    }
    REQUIRE(std::ssize(told.live) == num_live(id));
    REQUIRE(told.live.size() == told.slow.live.size());
    for (std::size_t rank = 0; rank < told.live.size(); ++rank) {
      const Sequence& sequence = *scheduler.group(id).sequences[rank];
      REQUIRE(sequence.id() == told.live[rank].first);
      REQUIRE(told.live[rank].second == told.slow.live[rank].tokens);
      REQUIRE(std::ranges::equal(sequence.token_ids().subspan(told.prompt.size()), told.live[rank].second));
      REQUIRE(scheduler.group(id).beams->sum(static_cast<std::int32_t>(rank)) == told.slow.live[rank].sum);
    }
  }

  void check_results(const Told& told) {
    REQUIRE(told.over());
    REQUIRE(told.results.size() == told.slow.finished.size());
    for (std::size_t rank = 0; rank < told.results.size(); ++rank) {
      const SequenceEvent& result = told.results[rank];
      REQUIRE(std::cmp_equal(result.branch, rank));
      REQUIRE(result.finished);
      REQUIRE(result.group_finished == (rank + 1 == told.results.size()));
      REQUIRE(result.score == told.slow.finished[rank].score);
      REQUIRE(told.hypotheses.at(result.sequence_id) == told.slow.finished[rank].tokens);
    }
    ++num_searches;
    num_hypotheses += std::ssize(told.results);
  }

  BatchBuilder builder_;
  ToyModel model_;
  bool holes_;
  std::int32_t stop_once_in_;
  std::map<GroupId, Told> told_;  // searches whose results have not come yet
  std::vector<std::pair<GroupId, SequenceId>> late_;
};

}  // namespace fastpaged::test
