// What a sampler might have said: few tokens, so that branches and requests say the same; for beams, candidates.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "proofs/plain_requests.h"
#include "random.h"

namespace fastpaged::test {

class RandomResults {
 public:
  // One result in so many fails.
  RandomResults(Random& random, const SchedulerOutput& plan, const PlainRequests& requests, std::int32_t one_fails_in) {
    for (const ScheduledSequence& planned : plan.scheduled) {
      for (std::int32_t i = 0; i < planned.num_results(); ++i) {
        const bool draws = i >= planned.num_scores;
        const auto request = requests.all().find(planned.group_id);
        const bool beam = draws && request != requests.all().end() && request->second.asked.sampling.beam.has_value();
        add_candidates(random, beam ? request->second.asked.sampling.beam->num_candidates : 0);
        const TokenId token = random.once_in(3) ? random.between(0, 49) : random.between(0, 1);
        tokens_.push_back({beam ? ids_.at(offsets_.end()[-2]) : token, !random.once_in(one_fails_in)});
      }
    }
  }

  [[nodiscard]] SampledRows rows() const {
    return {.tokens = tokens_, .top_offsets = offsets_, .top_ids = ids_, .top_logprobs = logprobs_};
  }

 private:
  // Tokens from anywhere on, in order; logprobs that often are equal.
  void add_candidates(Random& random, std::int32_t count) {
    std::vector<float> logprobs;
    const std::int32_t first = random.between(0, 49);
    for (std::int32_t i = 0; i < count; ++i) {
      ids_.push_back((first + i) % 50);
      logprobs.push_back(-0.5F * static_cast<float>(random.between(0, 8)));
    }
    std::ranges::sort(logprobs, std::ranges::greater{});
    logprobs_.insert(logprobs_.end(), logprobs.begin(), logprobs.end());
    offsets_.push_back(static_cast<std::int32_t>(ids_.size()));
  }

  std::vector<SampledToken> tokens_;
  std::vector<std::int32_t> offsets_ = {0};
  std::vector<TokenId> ids_;
  std::vector<float> logprobs_;
};

}  // namespace fastpaged::test
