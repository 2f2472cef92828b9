#include "fastpaged/sampling/row_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fastpaged/sampling/philox.h"

namespace fastpaged {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Below what a float32 can hold, C++ leaves the conversion open; a log-softmax in float32 gives -inf there.
float to_logprob(double value) {
  return value < static_cast<double>(std::numeric_limits<float>::lowest()) ? -kInfinity : static_cast<float>(value);
}

// Scans a row, and puts the limit in place of a row with +inf. False: there is nothing to sample.
bool scan_to_limit(LogitRow& row, RowScan& scan, std::vector<float>& limit) {
  scan_row(row, scan);
  if (scan.has_nan || !(scan.max > -kInfinity)) {
    return false;
  }
  if (scan.max == kInfinity) {
    limit.resize(static_cast<std::size_t>(row.size()));
    std::transform(row.data(), row.data() + row.size(), limit.begin(),
                   [](float logit) { return logit == kInfinity ? 0.0F : -kInfinity; });
    row = LogitRow(limit.data(), row.size(), row.passes());
    scan_row(row, scan);
  }
  return true;
}

}  // namespace

RowSample RowSampler::sample(const float* logits, std::int32_t vocab_size, const SampleRequest& request) {
  RowSample sample;
  LogitRow raw(logits, vocab_size, *passes_);
  sample.token.ok = scan_to_limit(raw, scan_, limit_);
  if (!sample.token.ok) {
    return sample;
  }
  if (request.given) {
    sample.token.token_id = *request.given;
    add_logprobs(raw, request.params.num_prompt_logprobs.value_or(0), sample);
    return sample;
  }
  if (LogitEdits::needed(request)) {
    LogitRow edited(edits_.apply(logits, vocab_size, request), vocab_size, *passes_);
    sample.token.ok = scan_to_limit(edited, edited_scan_, edited_limit_);
    if (!sample.token.ok) {
      return sample;
    }
    sample.token.token_id = choose(edited, edited_scan_, request);
  } else {
    sample.token.token_id = choose(raw, scan_, request);
  }
  if (request.params.num_logprobs) {
    add_logprobs(raw, *request.params.num_logprobs, sample);
  }
  return sample;
}

TokenId RowSampler::choose(const LogitRow& row, const RowScan& scan, const SampleRequest& request) {
  if (!(request.params.temperature > 0.0F)) {
    return scan.argmax;
  }
  filter_.apply({row, scan, request.params.temperature}, request.params, weights_);
  const std::uint64_t seed = mix(request.params.seed, static_cast<std::uint64_t>(request.sample_index));
  return weights_.choose(uniform(seed, request.position));
}

void RowSampler::add_logprobs(const LogitRow& row, std::int32_t num_alternatives, RowSample& sample) {
  weights_.assign_sums({row, scan_, 1.0F});
  const double log_total = std::log(weights_.total());
  const auto logprob = [&](float logit) {
    return to_logprob((static_cast<double>(logit) - static_cast<double>(scan_.max)) - log_total);
  };
  const TokenId id = sample.token.token_id;
  sample.logprob = logprob(row[id]);
  sample.rank = id == scan_.argmax ? 1 : rank_of(row, id);
  const std::int32_t n = std::clamp(num_alternatives, 0, row.size());
  if (n > 0) {
    select_best(row, scan_, n, best_);
    std::sort(best_.begin(), best_.begin() + n, better);
    sample.top_ids.reserve(static_cast<std::size_t>(n));
    sample.top_logprobs.reserve(static_cast<std::size_t>(n));
    for (std::int32_t i = 0; i < n; ++i) {
      sample.top_ids.push_back(best_[i].id);
      sample.top_logprobs.push_back(logprob(best_[i].logit));
    }
  }
}

}  // namespace fastpaged
