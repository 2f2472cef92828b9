#include "fastpaged/sampling/beam_candidates.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "fastpaged/sampling/log_softmax.h"

namespace fastpaged {
namespace {

std::int32_t num_wanted(const SamplingParams& params) {
  const std::int32_t num_candidates = params.beam ? params.beam->num_candidates : 0;
  return std::max(num_candidates, params.num_logprobs.value_or(0));
}

}  // namespace

void BeamCandidates::select(const LogitRow& row, const RowScan& scan, const SampleRequest& request,
                            TokenWeights& weights, LogitEdits& edits, std::vector<RankedToken>& best) {
  const float temperature = request.params.temperature;
  const LogSoftmax log_softmax({row, scan, temperature > 0.0F ? temperature : 1.0F}, weights);
  logprobs_.resize(static_cast<std::size_t>(row.size()));
  std::transform(row.data(), row.data() + row.size(), logprobs_.begin(), log_softmax);
  const bool edited = LogitEdits::needed(request);
  const float* logprobs = edited ? edits.apply(logprobs_.data(), row.size(), request) : logprobs_.data();

  const LogitRow candidates(logprobs, row.size(), row.passes());
  scan_row(candidates, scan_);
  const std::int32_t n = std::min(num_wanted(request.params), row.size());
  select_best(candidates, scan_, n, best);
  best.resize(static_cast<std::size_t>(n));
  std::sort(best.begin(), best.end(), better);
  const auto impossible = [](const RankedToken& token) {
    return token.logit == -std::numeric_limits<float>::infinity();
  };
  best.erase(std::find_if(best.begin(), best.end(), impossible), best.end());
}

}  // namespace fastpaged
