#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "fastpaged/scheduler/beam_search.h"
#include "proof_scale.h"
#include "random.h"
#include "scheduler/slow_beam_search.h"

namespace fastpaged::test {

namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

BeamParams beams(std::int32_t width, double length_penalty = 1.0, EarlyStopping early_stopping = EarlyStopping::kNo) {
  return {
      .width = width, .length_penalty = length_penalty, .early_stopping = early_stopping, .num_candidates = 2 * width};
}

// A search with the tokens of its beams, as whoever uses it keeps them.
class Searcher {
 public:
  Searcher(const BeamParams& params, std::int32_t max_length, std::vector<TokenId> end_tokens)
      : search(params, max_length), end_tokens_(std::move(end_tokens)), num_candidates_(params.num_candidates) {}

  // rows: for each live beam the logprobs of all tokens.
  BeamSearch::Step grow(const std::vector<std::vector<float>>& rows) {
    std::vector<std::vector<TokenId>> ids;
    std::vector<std::vector<float>> logprobs;
    for (const std::vector<float>& row : rows) {
      ids.push_back(best_first(row));
      ids.back().resize(std::min<std::size_t>(row.size(), num_candidates_));
      logprobs.emplace_back();
      for (const TokenId id : ids.back()) {
        logprobs.back().push_back(row[id]);
      }
    }
    std::vector<BeamSearch::Row> candidates;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      candidates.push_back({ids[i], logprobs[i]});
    }
    const BeamSearch::Step step = search.grow(candidates, end_tokens_, next_id_);
    search.check_invariants();
    take(step);
    return step;
  }

  bool finish(std::int32_t rank) {
    hypotheses[next_id_] = live[rank];
    live.erase(live.begin() + rank);
    const bool kept = search.finish(rank, next_id_++, FinishReason::kStop).has_value();
    search.check_invariants();
    return kept;
  }

  BeamSearch search;
  std::vector<std::vector<TokenId>> live = {{}};
  std::map<SequenceId, std::vector<TokenId>> hypotheses;

 private:
  void take(const BeamSearch::Step& step) {
    const auto grown = [&](const BeamSearch::Continuation& continuation) {
      std::vector<TokenId> tokens = live.at(continuation.parent);
      tokens.push_back(continuation.token);
      return tokens;
    };
    for (const BeamSearch::Finished& finished : step.finished) {
      REQUIRE_FALSE(hypotheses.contains(finished.hypothesis.id));
      hypotheses[finished.hypothesis.id] = grown(finished.last);
    }
    std::vector<std::vector<TokenId>> next;
    for (const BeamSearch::Continuation& continuation : step.live) {
      next.push_back(grown(continuation));
    }
    live = next;
  }

  std::vector<TokenId> end_tokens_;
  std::int32_t num_candidates_;
  SequenceId next_id_ = 0;
};

void require_same(const Searcher& searcher, const SlowBeamSearch& slow) {
  REQUIRE(searcher.live.size() == slow.live.size());
  for (std::size_t rank = 0; rank < slow.live.size(); ++rank) {
    REQUIRE(searcher.live[rank] == slow.live[rank].tokens);
    REQUIRE(searcher.search.sum(static_cast<std::int32_t>(rank)) == slow.live[rank].sum);
  }
  REQUIRE(searcher.search.best().size() == slow.finished.size());
  for (std::size_t rank = 0; rank < slow.finished.size(); ++rank) {
    const BeamSearch::Hypothesis& hypothesis = searcher.search.best()[rank];
    REQUIRE(searcher.hypotheses.at(hypothesis.id) == slow.finished[rank].tokens);
    REQUIRE(hypothesis.score == slow.finished[rank].score);
  }
  REQUIRE(searcher.search.over() == slow.over());
}

}  // namespace

TEST_CASE("a beam search keeps the beams and hypotheses that a slow search keeps, whatever its rules") {
  constexpr std::array kPenalties = {-1.5, 0.0, 0.6, 1.0, 1.4, 3.0};
  std::int64_t num_ended_early = 0;
  std::int64_t num_narrow = 0;
  for (int seed = 0; seed < 2000 * proof_scale(); ++seed) {
    CAPTURE(seed);
    Random random(static_cast<std::uint32_t>(seed));
    BeamParams params =
        beams(random.between(1, 6), random.one_of(kPenalties), static_cast<EarlyStopping>(random.between(0, 2)));
    SlowBeamSearch slow{.params = params, .max_length = random.between(1, 12)};
    for (int i = random.between(0, 3); i > 0; --i) {
      slow.end_tokens.push_back(3 * i);
    }
    std::sort(slow.end_tokens.begin(), slow.end_tokens.end());
    params.num_candidates =
        std::max<std::int32_t>(2, 1 + static_cast<std::int32_t>(slow.end_tokens.size())) * params.width;
    slow.params = params;
    Searcher searcher(params, slow.max_length, slow.end_tokens);
    const std::int32_t vocab_size = random.between(1, 30);
    const bool holes = random.once_in(3);
    while (!searcher.search.over()) {
      if (random.once_in(8)) {  // a stop string
        const std::int32_t rank = random.between(0, searcher.search.num_live() - 1);
        const SlowBeam beam = slow.live[rank];
        slow.live.erase(slow.live.begin() + rank);
        slow.finish(beam);
        searcher.finish(rank);
      } else {
        std::vector<std::vector<float>> rows;
        for (const SlowBeam& beam : slow.live) {
          std::vector<TokenId> context = beam.tokens;
          context.push_back(seed);
          rows.push_back(toy_logprobs(context, vocab_size, holes));
        }
        slow.grow(rows);
        searcher.grow(rows);
      }
      require_same(searcher, slow);
      num_narrow += !slow.live.empty() && std::ssize(slow.live) < params.width ? 1 : 0;
    }
    num_ended_early += slow.live.empty() ? 0 : 1;
  }
  CHECK(num_ended_early > 100);
  CHECK(num_narrow > 100);
}

TEST_CASE("an end token that is ranked beyond the width finishes nothing") {
  Searcher searcher(beams(2), 10, {9});
  std::vector<float> row(10, kNone);
  row[1] = -1.0F;
  row[2] = -2.0F;
  row[9] = -3.0F;
  CHECK(searcher.grow({row}).finished.empty());
  CHECK(searcher.live == std::vector<std::vector<TokenId>>{{1}, {2}});

  row[9] = -0.5F;  // after 1 it is the best of all, after 2 the third
  const BeamSearch::Step step = searcher.grow({row, row});
  REQUIRE(step.finished.size() == 1);
  CHECK(step.finished[0].last.parent == 0);
  CHECK(step.finished[0].hypothesis.score == doctest::Approx(-1.5 / 2));
  CHECK(step.finished[0].hypothesis.reason == FinishReason::kStop);
  CHECK(searcher.live == std::vector<std::vector<TokenId>>{{1, 1}, {1, 2}});
}

TEST_CASE("of equal sums the beam of better rank comes first, then the smaller token id") {
  Searcher searcher(beams(3), 10, {});
  std::vector<float> row(5, kNone);
  row[4] = -1.0F;
  row[0] = -2.0F;
  row[3] = -2.0F;
  row[1] = -2.0F;
  searcher.grow({row});
  CHECK(searcher.live == std::vector<std::vector<TokenId>>{{4}, {0}, {1}});
  searcher.grow({{-2.0F, -2.0F}, {kNone, -1.0F}, {kNone, -1.0F}});
  CHECK(searcher.live == std::vector<std::vector<TokenId>>{{4, 0}, {4, 1}, {0, 1}});
}

TEST_CASE("at the longest length the best of all continuations are hypotheses, ended or not") {
  Searcher searcher(beams(2), 1, {2});
  const BeamSearch::Step step = searcher.grow({{-1.0F, -2.0F, -1.5F}});
  REQUIRE(step.finished.size() == 2);
  CHECK(step.finished[0].hypothesis.reason == FinishReason::kLength);
  CHECK(step.finished[1].hypothesis.reason == FinishReason::kStop);
  CHECK(step.live.empty());
  CHECK(searcher.search.over());
}

TEST_CASE("a length penalty above 0 favours long hypotheses, one below 0 short ones") {
  for (const double penalty : {-1.0, 0.0, 2.0}) {
    Searcher searcher(beams(2, penalty, EarlyStopping::kNever), 3, {1});
    searcher.grow({{-1.0F, -2.0F}});  // live: 0; finished: 1 with -2
    searcher.grow({{-0.5F, -9.0F}});
    searcher.grow({{-1.5F, -9.0F}});  // finished: 0 0 0 with -3
    REQUIRE(searcher.search.over());
    const std::vector<TokenId>& best = searcher.hypotheses.at(searcher.search.best()[0].id);
    CHECK(best.size() == (penalty > 1.0 ? 3 : 1));
    CHECK(searcher.search.best()[0].score == doctest::Approx(penalty > 1.0 ? -3.0 / 9 : -2.0));
  }
}

TEST_CASE("early stopping: at once, when the best beam is no better now, or when it never could be") {
  const auto steps_until_over = [](EarlyStopping early_stopping) {
    Searcher searcher(beams(1, 1.0, early_stopping), 20, {1});
    searcher.grow({{-1.0F, -0.9F}});  // the end is the best of all
    int steps = 1;
    while (!searcher.search.over()) {
      searcher.grow({{-0.1F, -50.0F}});
      ++steps;
    }
    return steps;
  };
  CHECK(steps_until_over(EarlyStopping::kYes) == 1);
  CHECK(steps_until_over(EarlyStopping::kNo) == 1);      // -1.0 / 1 is no better than -0.9
  CHECK(steps_until_over(EarlyStopping::kNever) == 20);  // -1.0 / 20 would be
}

TEST_CASE("a finished beam leaves fewer live ones, until its siblings fill them up again") {
  Searcher searcher(beams(3), 10, {});
  searcher.grow({{-1.0F, -2.0F, -3.0F, -4.0F}});
  CHECK(searcher.finish(1));
  CHECK(searcher.search.num_live() == 2);
  CHECK(searcher.search.sum(1) == -3.0);
  CHECK_FALSE(searcher.search.over());
  searcher.grow({{-1.0F, -2.0F}, {-1.0F, -2.0F}});
  CHECK(searcher.live == std::vector<std::vector<TokenId>>{{0, 0}, {0, 1}, {2, 0}});
  REQUIRE(searcher.search.best().size() == 1);
  CHECK(searcher.search.best()[0].score == -2.0);
}

TEST_CASE("with no live beam left a search is over") {
  Searcher searcher(beams(2), 10, {});
  searcher.grow({{kNone, kNone}});
  CHECK(searcher.search.over());
  CHECK(searcher.search.best().empty());
}

TEST_CASE("a hypothesis that is worse than `width` others is not kept") {
  Searcher searcher(beams(2, 0.0, EarlyStopping::kNever), 10, {2});
  searcher.grow({{-5.0F, kNone, -1.0F}});
  searcher.grow({{-9.0F, kNone, 1.0F}});
  CHECK(searcher.search.best().size() == 2);
  CHECK_FALSE(searcher.finish(0));
  CHECK(searcher.search.best().back().score == -4.0);
}

}  // namespace fastpaged::test
