#include "fastpaged/scheduler/beam_search.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <tuple>

#include "fastpaged/base/check.h"

namespace fastpaged {

namespace {

bool better(const BeamSearch::Continuation& a, const BeamSearch::Continuation& b) {
  return std::tuple(-a.sum, a.parent, a.token) < std::tuple(-b.sum, b.parent, b.token);
}

}  // namespace

BeamSearch::BeamSearch(const BeamParams& params, std::int32_t max_length)
    : params_(params), max_length_(max_length), sums_{0.0} {
  hypotheses_.reserve(static_cast<std::size_t>(params.width) + 1);
}

BeamSearch::Step BeamSearch::grow(std::span<const Row> rows, std::span<const TokenId> end_tokens, SequenceId& next_id) {
  invariant(rows.size() == sums_.size(), "BeamSearch: not a row for each live beam");
  invariant(length_ < max_length_, "BeamSearch: grows beyond the longest length");
  const auto width = static_cast<std::size_t>(params_.width);
  ++length_;
  Step step;
  std::size_t rank = 0;
  for (const Continuation& candidate : candidates(rows)) {
    const bool ends = std::binary_search(end_tokens.begin(), end_tokens.end(), candidate.token);
    if (!ends && length_ < max_length_) {
      if (step.live.size() < width) {
        step.live.push_back(candidate);
      }
    } else if (rank < width) {
      const FinishReason reason = ends ? FinishReason::kStop : FinishReason::kLength;
      const Hypothesis hypothesis = {next_id, score(candidate.sum, length_), reason};
      if (keep(hypothesis)) {
        ++next_id;
        step.finished.push_back({candidate, hypothesis});
      }
    }
    ++rank;
  }
  sums_.clear();
  for (const Continuation& live : step.live) {
    sums_.push_back(live.sum);
  }
  return step;
}

std::vector<BeamSearch::Continuation> BeamSearch::candidates(std::span<const Row> rows) const {
  const auto num_candidates = static_cast<std::size_t>(params_.num_candidates);
  std::vector<Continuation> all;
  all.reserve(rows.size() * num_candidates);
  for (std::size_t parent = 0; parent < rows.size(); ++parent) {
    const Row& row = rows[parent];
    for (std::size_t i = 0; i < std::min(row.ids.size(), num_candidates); ++i) {
      const double sum = sums_[parent] + static_cast<double>(row.logprobs[i]);
      if (sum > -std::numeric_limits<double>::infinity()) {
        all.push_back({static_cast<std::int32_t>(parent), row.ids[i], sum});
      }
    }
  }
  const std::size_t num_best = std::min(all.size(), num_candidates);
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(num_best), all.end(), better);
  all.resize(num_best);
  return all;
}

std::optional<double> BeamSearch::finish(std::int32_t rank, SequenceId id, FinishReason reason) {
  invariant(rank >= 0 && rank < num_live(), "BeamSearch: finishes a beam that does not live");
  const Hypothesis hypothesis = {id, score(sums_[rank], length_), reason};
  sums_.erase(sums_.begin() + rank);
  return keep(hypothesis) ? std::optional(hypothesis.score) : std::nullopt;
}

bool BeamSearch::over() const {
  if (sums_.empty()) {
    return true;
  }
  if (std::ssize(hypotheses_) < params_.width) {
    return false;
  }
  const bool may_grow_better = params_.early_stopping == EarlyStopping::kNever && params_.length_penalty > 0.0;
  return params_.early_stopping == EarlyStopping::kYes ||
         score(sums_.front(), may_grow_better ? max_length_ : length_) <= hypotheses_.back().score;
}

// A sum of 0 stays 0, whatever a length to some power comes to; so does that of a beam with nothing generated yet.
double BeamSearch::score(double sum, std::int32_t length) const {
  return sum == 0.0 ? 0.0 : sum / std::pow(static_cast<double>(length), params_.length_penalty);
}

bool BeamSearch::keep(const Hypothesis& hypothesis) {
  const auto place = std::ranges::upper_bound(hypotheses_, hypothesis.score, std::greater<>(), &Hypothesis::score);
  if (place - hypotheses_.begin() >= params_.width) {
    return false;
  }
  hypotheses_.insert(place, hypothesis);
  if (std::ssize(hypotheses_) > params_.width) {
    hypotheses_.pop_back();
  }
  return true;
}

void BeamSearch::check_invariants() const {
  invariant(length_ >= 0 && length_ <= max_length_, "BeamSearch: longer than the longest length");
  invariant(num_live() <= params_.width && std::ssize(hypotheses_) <= params_.width,
            "BeamSearch: wider than its width");
  invariant(std::ranges::is_sorted(sums_, std::greater<>()), "BeamSearch: live beams out of order");
  invariant(std::ranges::is_sorted(hypotheses_, std::greater<>(), &Hypothesis::score),
            "BeamSearch: hypotheses out of order");
}

}  // namespace fastpaged
