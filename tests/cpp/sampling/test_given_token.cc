// Rows that score a given token: nothing is drawn, nothing is edited.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "fastpaged/sampling/sampler.h"
#include "sampling/model.h"

namespace fastpaged {
namespace {

using testing::kInf;

// Each request looks at the row of its own place.
SamplerOutput score(const std::vector<std::vector<float>>& rows, std::vector<SampleRequest> requests) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].row = static_cast<std::int32_t>(i);
  }
  std::vector<float> logits;
  for (const std::vector<float>& row : rows) {
    logits.insert(logits.end(), row.begin(), row.end());
  }
  ThreadPool pool(2);
  const auto vocab = static_cast<std::int64_t>(rows.at(0).size());
  return Sampler(pool).sample(TensorView::dense(logits.data(), DType::kFloat32, {std::ssize(rows), vocab}), requests);
}

SampleRequest given(TokenId token, std::int32_t num_alternatives) {
  SampleRequest request;
  request.params.num_prompt_logprobs = num_alternatives;
  request.given = token;
  return request;
}

TEST_CASE("a given token's logprob, rank and alternatives are those of the float64 model") {
  std::mt19937 random(6);
  for (int trial = 0; trial < 300; ++trial) {
    const std::vector<float> logits = testing::random_logits(random);
    const auto size = static_cast<std::int32_t>(logits.size());
    const auto token = static_cast<TokenId>(random() % logits.size());
    const auto wanted = static_cast<std::int32_t>(random() % 8);
    const SamplerOutput output = score({logits}, {given(token, wanted)});
    const std::vector<double> logprobs = testing::log_softmax(logits);
    const std::vector<std::int32_t> order = testing::order_of(logits);
    const auto matches = [&](float logprob, std::int32_t id) {
      const double expected = logprobs[id];
      return static_cast<double>(logprob) == expected ||
             std::fabs(static_cast<double>(logprob) - expected) <= 1e-6 + 0x1p-23 * std::fabs(expected);
    };
    REQUIRE(output.tokens[0].ok);
    REQUIRE(output.tokens[0].token_id == token);
    REQUIRE(matches(output.logprobs[0], token));
    REQUIRE(order[output.ranks[0] - 1] == token);
    REQUIRE(output.top_offsets == std::vector<std::int32_t>{0, std::min(wanted, size)});
    for (std::int32_t i = 0; i < output.top_offsets[1]; ++i) {
      REQUIRE(output.top_ids[i] == order[i]);
      REQUIRE(matches(output.top_logprobs[i], order[i]));
    }
  }
}

TEST_CASE("what a request asks of its sampling changes nothing in the score of a given token") {
  std::mt19937 random(8);
  for (int trial = 0; trial < 100; ++trial) {
    const std::vector<float> logits = testing::random_logits(random);
    const auto token = static_cast<TokenId>(random() % logits.size());
    const SampleRequest plain = given(token, 3);
    SampleRequest busy = given(token, 3);
    busy.params = testing::random_params(random);
    busy.params.num_prompt_logprobs = 3;
    busy.params.num_logprobs = 1;
    busy.params.presence_penalty = 1.5F;
    busy.params.repetition_penalty = 1.25F;
    busy.params.rules = std::make_shared<const TokenRules>(TokenRules{.logit_bias = {{token, 5.0F}}});
    busy.position = trial;
    busy.history = std::span(&token, 1);
    const SamplerOutput output = score({logits, logits}, {plain, busy});
    REQUIRE(output.tokens[1].token_id == token);
    REQUIRE(output.logprobs[0] == output.logprobs[1]);
    REQUIRE(output.ranks[0] == output.ranks[1]);
    const auto middle = output.top_ids.begin() + output.top_offsets[1];
    REQUIRE(std::equal(output.top_ids.begin(), middle, middle, output.top_ids.end()));
    const auto half = output.top_logprobs.begin() + output.top_offsets[1];
    REQUIRE(std::equal(output.top_logprobs.begin(), half, half, output.top_logprobs.end()));
  }
}

TEST_CASE("a given token may be impossible; a row with a NaN or with nothing in it is not ok") {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const SamplerOutput output =
      score({{0.0F, -kInf, 0.0F}, {kInf, 0.0F, 1.0F}, {0.0F, kNaN, 1.0F}, {-kInf, -kInf, -kInf}},
            {given(1, 0), given(2, 0), given(2, 2), given(2, 2)});
  CHECK(output.tokens[0].ok);
  CHECK(output.logprobs[0] == -kInf);
  CHECK(output.ranks[0] == 3);
  CHECK(output.tokens[1].ok);
  CHECK(output.logprobs[1] == -kInf);
  CHECK(output.ranks[1] == 3);
  CHECK_FALSE(output.tokens[2].ok);
  CHECK_FALSE(output.tokens[3].ok);
  CHECK(output.top_ids.empty());
}

TEST_CASE("a given token beyond the vocabulary is refused before anything is computed") {
  CHECK_THROWS_WITH_AS(score({{0.0F, 1.0F}}, {given(2, 0)}), "a given token must be in [0, 2), got 2",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(score({{0.0F, 1.0F}}, {given(-1, 0)}), "a given token must be in [0, 2), got -1",
                       std::invalid_argument);
}

}  // namespace
}  // namespace fastpaged
