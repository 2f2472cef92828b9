#include "fastpaged/sampling/sampler.h"

#include <limits>
#include <string>

#include "fastpaged/base/check.h"
#include "fastpaged/base/default_float_environment.h"

namespace fastpaged {
namespace {

void check_logits(const TensorView& logits) {
  require(logits.dtype == DType::kFloat32 && logits.rank == 2, [&] {
    return "logits must be a float32 tensor of rank 2, got rank " + std::to_string(logits.rank) +
           (logits.dtype == DType::kFloat32 ? "" : " of another dtype");
  });
  constexpr std::int64_t kMaxVocab = std::numeric_limits<std::int32_t>::max() - kLogitBlock;
  require(logits.shape[1] > 0 && logits.shape[1] <= kMaxVocab, [&] {
    return "logits must have 1.." + std::to_string(kMaxVocab) + " columns, got " + std::to_string(logits.shape[1]);
  });
  require(logits.strides[1] == 1, [&] {
    return "logits must have contiguous rows, got a column stride of " + std::to_string(logits.strides[1]);
  });
}

void check_requests(std::span<const SampleRequest> requests, std::int64_t num_rows, std::int64_t vocab_size) {
  for (const SampleRequest& request : requests) {
    require(request.row >= 0 && request.row < num_rows, [&] {
      return "a request's row must be one of the " + std::to_string(num_rows) + " rows of logits, from 0 on, got " +
             std::to_string(request.row);
    });
    const std::int64_t given = request.given.value_or(0);
    require(given >= 0 && given < vocab_size, [&] {
      return "a given token must be in [0, " + std::to_string(vocab_size) + "), got " + std::to_string(given);
    });
  }
}

SamplerOutput concatenate(std::span<const RowSample> samples) {
  SamplerOutput output;
  std::size_t num_alternatives = 0;
  for (const RowSample& sample : samples) {
    num_alternatives += sample.top_ids.size();
  }
  output.top_ids.reserve(num_alternatives);
  output.top_logprobs.reserve(num_alternatives);
  output.top_offsets.push_back(0);
  for (const RowSample& sample : samples) {
    output.tokens.push_back(sample.token);
    output.logprobs.push_back(sample.logprob);
    output.ranks.push_back(sample.rank);
    output.top_ids.insert(output.top_ids.end(), sample.top_ids.begin(), sample.top_ids.end());
    output.top_logprobs.insert(output.top_logprobs.end(), sample.top_logprobs.begin(), sample.top_logprobs.end());
    output.top_offsets.push_back(static_cast<std::int32_t>(output.top_ids.size()));
  }
  return output;
}

}  // namespace

Sampler::Sampler(ThreadPool& pool, const LogitPasses& passes)
    : pool_(pool), row_samplers_(static_cast<std::size_t>(pool.num_threads()), RowSampler(passes)) {}

SamplerOutput Sampler::sample(const TensorView& logits, std::span<const SampleRequest> requests) {
  check_logits(logits);
  check_requests(requests, logits.shape[0], logits.shape[1]);
  std::vector<RowSample> samples(requests.size());
  pool_.parallel_for(std::ssize(requests), [&](std::int64_t i, int thread) {
    const DefaultFloatEnvironment environment;
    samples[i] = row_samplers_[thread].sample(logits.row<const float>(requests[i].row),
                                              static_cast<std::int32_t>(logits.shape[1]), requests[i]);
  });
  return concatenate(samples);
}

}  // namespace fastpaged
