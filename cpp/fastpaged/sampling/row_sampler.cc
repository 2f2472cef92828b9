#include "fastpaged/sampling/row_sampler.h"

#include <algorithm>
#include <limits>
#include <span>

#include "fastpaged/sampling/log_softmax.h"
#include "fastpaged/sampling/philox.h"

namespace fastpaged {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

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

template <typename Logprob>
void add_best(std::span<const RankedToken> tokens, const Logprob& logprob, RowSample& sample) {
  sample.top_ids.reserve(tokens.size());
  sample.top_logprobs.reserve(tokens.size());
  for (const RankedToken& token : tokens) {
    sample.top_ids.push_back(token.id);
    sample.top_logprobs.push_back(logprob(token.logit));
  }
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
  if (request.params.beam) {
    add_candidates(raw, request, sample);
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

void RowSampler::add_candidates(const LogitRow& row, const SampleRequest& request, RowSample& sample) {
  candidates_.select(row, scan_, request, weights_, edits_, best_);
  if (!best_.empty()) {
    sample.token.token_id = best_.front().id;
    sample.logprob = best_.front().logit;
    sample.rank = 1;
  }
  add_best(best_, [](float logprob) { return logprob; }, sample);
}

void RowSampler::add_logprobs(const LogitRow& row, std::int32_t num_alternatives, RowSample& sample) {
  const LogSoftmax logprob({row, scan_, 1.0F}, weights_);
  const TokenId id = sample.token.token_id;
  sample.logprob = logprob(row[id]);
  sample.rank = id == scan_.argmax ? 1 : rank_of(row, id);
  const std::int32_t n = std::clamp(num_alternatives, 0, row.size());
  if (n > 0) {
    select_best(row, scan_, n, best_);
    std::sort(best_.begin(), best_.begin() + n, better);
    add_best(std::span(best_).first(static_cast<std::size_t>(n)), logprob, sample);
  }
}

}  // namespace fastpaged
