// Rows of beams: log-softmax, then the request's edits, then the best.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "fastpaged/sampling/sampler.h"
#include "sampling/model.h"

namespace fastpaged {
namespace {

using testing::kInf;

SamplerOutput sample(std::vector<float> logits, const SampleRequest& request) {
  ThreadPool pool(1);
  return Sampler(pool).sample(TensorView::dense(logits.data(), DType::kFloat32, {1, std::ssize(logits)}),
                              std::span(&request, 1));
}

SampleRequest beam_request(std::int32_t num_candidates, float temperature = 0.0F) {
  SampleRequest request;
  request.params.temperature = temperature;
  request.params.beam = {.width = num_candidates / 2, .num_candidates = num_candidates};
  return request;
}

bool close(float given, double expected) {
  return static_cast<double>(given) == expected ||
         std::fabs(static_cast<double>(given) - expected) <= 1e-5 + 0x1p-22 * std::fabs(expected);
}

// The request's edits on logprobs, one after the other, in float64.
std::vector<double> edit(std::vector<double> logprobs, const SampleRequest& request) {
  const TokenRules& rules = *request.params.rules;
  const auto size = static_cast<TokenId>(logprobs.size());
  for (TokenId id = 0; id < size; ++id) {
    const std::vector<TokenId>& allowed = rules.allowed_token_ids;
    if (!allowed.empty() && std::find(allowed.begin(), allowed.end(), id) == allowed.end()) {
      logprobs[id] = -std::numeric_limits<double>::infinity();
    }
  }
  for (const TokenRules::Bias& item : rules.logit_bias) {
    if (item.id < size) {
      logprobs[item.id] += static_cast<double>(item.bias);
    }
  }
  for (const TokenId id : rules.end_token_ids) {
    if (id < size && request.num_output_tokens < request.params.min_tokens) {
      logprobs[id] = -std::numeric_limits<double>::infinity();
    }
  }
  for (TokenId id = 0; id < size; ++id) {
    if (std::find(request.history.begin(), request.history.end(), id) != request.history.end()) {
      const auto penalty = static_cast<double>(request.params.repetition_penalty);
      logprobs[id] = logprobs[id] > 0.0 ? logprobs[id] / penalty : logprobs[id] * penalty;
    }
  }
  return logprobs;
}

TEST_CASE("candidates are the best of the edited log-softmax, as the float64 model has it") {
  std::mt19937 random(11);
  std::int64_t num_masked = 0;
  for (int trial = 0; trial < 400; ++trial) {
    CAPTURE(trial);
    const std::vector<float> logits = testing::random_logits(random);
    const auto some_token = [&] { return static_cast<TokenId>(random() % logits.size()); };
    const float temperature = random() % 2 == 0 ? 0.0F : 0.25F * static_cast<float>(1 + random() % 8);
    SampleRequest request = beam_request(2 + static_cast<std::int32_t>(random() % 30), temperature);
    TokenRules rules;
    std::vector<TokenId> history;
    if (random() % 2 == 0) {
      rules.logit_bias = {{some_token(), 3.0F}};
      rules.end_token_ids = {some_token()};
      history = {some_token(), some_token()};
      request.params.min_tokens = 2;
      request.params.repetition_penalty = 1.5F;
      request.num_output_tokens = static_cast<std::int32_t>(random() % 4);
    }
    if (random() % 4 == 0) {
      rules.allowed_token_ids = {some_token(), some_token(), some_token()};
    }
    request.history = history;
    request.params.rules = std::make_shared<const TokenRules>(rules);

    std::vector<double> logprobs;
    const double divisor = temperature > 0.0F ? static_cast<double>(temperature) : 1.0;
    const double max = *std::max_element(logits.begin(), logits.end());
    double total = 0.0;
    for (const float logit : logits) {
      total += std::exp((static_cast<double>(logit) - max) / divisor);
    }
    for (const float logit : logits) {
      const double logprob = (static_cast<double>(logit) - max) / divisor - std::log(total);
      const bool too_low = logprob < static_cast<double>(std::numeric_limits<float>::lowest());
      logprobs.push_back(too_low ? -std::numeric_limits<double>::infinity() : logprob);
    }
    std::vector<double> expected = edit(logprobs, request);

    const SamplerOutput output = sample(logits, request);
    REQUIRE(output.tokens[0].ok);
    for (std::size_t i = 0; i < output.top_ids.size(); ++i) {
      REQUIRE(close(output.top_logprobs[i], expected[output.top_ids[i]]));
      REQUIRE((i == 0 || output.top_logprobs[i - 1] > output.top_logprobs[i] ||
               (output.top_logprobs[i - 1] == output.top_logprobs[i] && output.top_ids[i - 1] < output.top_ids[i])));
    }
    std::sort(expected.begin(), expected.end(), std::greater<>());
    const auto num_possible =
        std::count_if(expected.begin(), expected.end(), [](double logprob) { return std::isfinite(logprob); });
    REQUIRE(std::ssize(output.top_ids) == std::min<std::int64_t>(num_possible, request.params.beam->num_candidates));
    for (std::size_t i = 0; i < output.top_ids.size(); ++i) {
      REQUIRE(close(output.top_logprobs[i], expected[i]));
    }
    if (num_possible > 0) {
      REQUIRE(output.tokens[0].token_id == output.top_ids[0]);
      REQUIRE(output.logprobs[0] == output.top_logprobs[0]);
      REQUIRE(output.ranks[0] == 1);
    }
    num_masked += num_possible == 0 ? 1 : 0;
  }
  CHECK(num_masked > 0);
}

TEST_CASE("a user who wants to see more than the candidates gets more") {
  SampleRequest request = beam_request(2);
  request.params.num_logprobs = 4;
  CHECK(sample({1.0F, 3.0F, 2.0F, 0.0F, 5.0F}, request).top_ids == std::vector<std::int32_t>{4, 1, 2, 0});
  request.params.num_logprobs = 1;
  CHECK(sample({1.0F, 3.0F, 2.0F, 0.0F, 5.0F}, request).top_ids == std::vector<std::int32_t>{4, 1});
}

TEST_CASE("equal logprobs come in order of ids, also where different logits have the same") {
  const SamplerOutput output = sample({200.0F, 1.0F, 1.0F, std::nextafter(1.0F, 2.0F)}, beam_request(4));
  CHECK(output.top_logprobs[1] == output.top_logprobs[3]);
  CHECK(output.top_ids == std::vector<std::int32_t>{0, 1, 2, 3});
}

TEST_CASE("a beam's row with a NaN or nothing in it is not ok; one that masks have emptied is, without candidates") {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  CHECK_FALSE(sample({0.0F, kNaN, 1.0F}, beam_request(2)).tokens[0].ok);
  CHECK_FALSE(sample({-kInf, -kInf}, beam_request(2)).tokens[0].ok);
  SampleRequest request = beam_request(2);
  request.params.rules = std::make_shared<const TokenRules>(TokenRules{.allowed_token_ids = {2}});
  const SamplerOutput output = sample({0.0F, 1.0F, -kInf}, request);
  CHECK(output.tokens[0].ok);
  CHECK(output.top_ids.empty());
}

TEST_CASE("infinite logits share the probability of a beam's row, and no other has any") {
  const SamplerOutput output = sample({kInf, 1.0F, kInf, 2.0F}, beam_request(4));
  CHECK(output.top_ids == std::vector<std::int32_t>{0, 2});
  CHECK(output.top_logprobs[0] == doctest::Approx(std::log(0.5)));
  CHECK(output.top_logprobs[0] == output.top_logprobs[1]);
}

}  // namespace
}  // namespace fastpaged
