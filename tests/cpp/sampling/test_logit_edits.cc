#include "fastpaged/sampling/logit_edits.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>

#include "sampling/model.h"

namespace fastpaged {
namespace {

using testing::kInf;

using Ids = std::vector<TokenId>;

bool contains(const Ids& ids, TokenId id) {
  return std::count(ids.begin(), ids.end(), id) > 0;
}

// What becomes of one token's logit, straight from the words of the header.
float edited(float logit, TokenId id, const SampleRequest& request) {
  const SamplingParams& params = request.params;
  const Ids history(request.history.begin(), request.history.end());
  const Ids output(history.end() - request.num_output_tokens, history.end());
  if (params.rules != nullptr) {
    const TokenRules& rules = *params.rules;
    if (!rules.allowed_token_ids.empty() && !contains(rules.allowed_token_ids, id)) {
      return -kInf;
    }
    if (contains(rules.end_token_ids, id) && std::ssize(output) < params.min_tokens) {
      return -kInf;
    }
    for (const Ids& word : rules.bad_words) {
      Ids text = output;
      text.push_back(id);
      if (text.size() >= word.size() && std::equal(word.rbegin(), word.rend(), text.rbegin())) {
        return -kInf;
      }
    }
    for (const TokenRules::Bias& item : rules.logit_bias) {
      logit = item.id == id ? logit + item.bias : logit;
    }
  }
  if (params.repetition_penalty != 1.0F && contains(history, id)) {
    logit = logit > 0.0F ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  }
  if (const auto count = std::count(output.begin(), output.end(), id); count > 0) {
    logit -= params.frequency_penalty * static_cast<float>(count);
    logit -= params.presence_penalty;
  }
  return logit;
}

class RandomRequests {
 public:
  explicit RandomRequests(std::mt19937& random) : random_(random) {}

  // Its history lives in `history`. Some ids lie beyond the vocabulary.
  SampleRequest draw(std::int32_t vocab_size, Ids& history) {
    limit_ = vocab_size + 2;
    history = ids(1 + random_() % 20);
    SampleRequest request;
    request.params = testing::random_params(random_);
    request.params.presence_penalty = pick({0.0F, 0.0F, 1.5F, -2.0F});
    request.params.frequency_penalty = pick({0.0F, 0.0F, 0.3F, -1.0F, 2.0F});
    request.params.repetition_penalty = pick({1.0F, 1.0F, 1.3F, 0.5F});
    request.params.min_tokens = static_cast<std::int32_t>(random_() % 6);
    if (random_() % 2 == 0) {
      request.params.rules = std::make_shared<const TokenRules>(rules(history));
    }
    request.history = history;
    request.num_output_tokens = static_cast<std::int32_t>(random_() % history.size());
    request.position = std::ssize(history);
    return request;
  }

 private:
  Ids ids(std::size_t count) {
    Ids drawn(count);
    std::generate(drawn.begin(), drawn.end(),
                  [&] { return static_cast<TokenId>(random_() % static_cast<unsigned>(limit_)); });
    return drawn;
  }

  float pick(std::initializer_list<float> values) { return values.begin()[random_() % values.size()]; }

  TokenRules rules(const Ids& history) {
    TokenRules drawn;
    for (TokenId id = 0; id < limit_; id += 1 + static_cast<TokenId>(random_() % 9)) {
      drawn.logit_bias.push_back({id, pick({-100.0F, -1.5F, 0.1F, 100.0F})});
    }
    drawn.allowed_token_ids = random_() % 2 == 0 ? Ids{} : ids(1 + random_() % 30);
    drawn.end_token_ids = ids(random_() % 3);
    for (std::size_t n = random_() % 4; n > 0; --n) {
      const std::size_t shared = random_() % std::min<std::size_t>(history.size(), 4);  // with the end of the history
      drawn.bad_words.push_back(random_() % 2 == 0 ? ids(1 + random_() % 3)
                                                   : Ids(history.end() - shared, history.end()));
      drawn.bad_words.back().push_back(ids(1)[0]);
    }
    return drawn;
  }

  std::mt19937& random_;
  TokenId limit_ = 0;
};

TEST_CASE("every logit becomes what the words of the header make of it, to the bit") {
  std::mt19937 random(1);
  LogitEdits edits;  // one for all: nothing of one row is left in the next
  int num_changed = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    const std::vector<float> logits = testing::random_logits(random);
    const auto vocab_size = static_cast<std::int32_t>(logits.size());
    Ids history;
    const SampleRequest request = RandomRequests(random).draw(vocab_size, history);
    const float* const row = edits.apply(logits.data(), vocab_size, request);
    bool changed = false;
    for (TokenId id = 0; id < vocab_size; ++id) {
      const float expected = edited(logits[id], id, request);
      REQUIRE(std::bit_cast<std::uint32_t>(row[id]) == std::bit_cast<std::uint32_t>(expected));
      changed |= row[id] != logits[id];
    }
    num_changed += changed ? 1 : 0;
    REQUIRE((!changed || LogitEdits::needed(request)));
  }
  CHECK(num_changed > 1000);
}

TEST_CASE("a request that asks for nothing needs no edits, and the end is held back only before min_tokens") {
  SampleRequest request;
  CHECK(!LogitEdits::needed(request));
  request.params.min_tokens = 2;
  CHECK(!LogitEdits::needed(request));
  request.params.rules = std::make_shared<const TokenRules>(TokenRules{.end_token_ids = {1}});
  CHECK(LogitEdits::needed(request));
  request.num_output_tokens = 2;
  CHECK(!LogitEdits::needed(request));
}

TEST_CASE("a bias comes before the penalties, and repetition before frequency and presence") {
  const Ids history = {0, 1, 1};
  SampleRequest request;
  request.params.repetition_penalty = 2.0F;
  request.params.frequency_penalty = 0.5F;
  request.params.presence_penalty = 0.25F;
  request.params.rules = std::make_shared<const TokenRules>(TokenRules{.logit_bias = {{1, 6.0F}, {2, -3.0F}}});
  request.history = history;
  request.num_output_tokens = 2;
  const std::vector<float> logits = {-4.0F, 2.0F, 1.0F};
  LogitEdits edits;
  const float* const row = edits.apply(logits.data(), 3, request);
  CHECK(std::vector<float>(row, row + 3) == std::vector<float>{-8.0F, (2.0F + 6.0F) / 2.0F - 1.0F - 0.25F, -2.0F});
}

TEST_CASE("a bad word of several tokens bars its last one only after the others, and only in the output") {
  const Ids history = {7, 5, 6, 5};
  SampleRequest request;
  request.params.rules =
      std::make_shared<const TokenRules>(TokenRules{.bad_words = {{6, 5, 3}, {5, 1}, {7, 5, 6, 5, 0}}});
  request.history = history;
  const std::vector<float> logits(8, 1.0F);
  LogitEdits edits;
  const auto barred = [&](std::int32_t num_output_tokens) {
    request.num_output_tokens = num_output_tokens;
    const float* const row = edits.apply(logits.data(), 8, request);
    Ids ids;
    for (TokenId id = 0; id < 8; ++id) {
      if (row[id] == -kInf) {
        ids.push_back(id);
      }
    }
    return ids;
  };
  CHECK(barred(0) == Ids{});
  CHECK(barred(1) == Ids{1});
  CHECK(barred(2) == Ids{1, 3});
  CHECK(barred(3) == Ids{1, 3});
  CHECK(barred(4) == Ids{0, 1, 3});
}

std::string refusal(const SamplingParams& params) {
  try {
    validate(params);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

std::string refusal(TokenRules rules) {
  return refusal(SamplingParams{.rules = std::make_shared<const TokenRules>(std::move(rules))});
}

TEST_CASE("what is out of range is refused by name, with what is allowed and what was given") {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  CHECK(refusal(SamplingParams{.presence_penalty = 2.5F}) == "presence_penalty must be in [-2, 2], got 2.500000");
  CHECK(refusal(SamplingParams{.frequency_penalty = -3.0F}) == "frequency_penalty must be in [-2, 2], got -3.000000");
  CHECK(refusal(SamplingParams{.repetition_penalty = 0.0F}) ==
        "repetition_penalty must be finite and > 0, got 0.000000");
  CHECK(refusal(SamplingParams{.repetition_penalty = kInf}) == "repetition_penalty must be finite and > 0, got inf");
  CHECK(refusal(SamplingParams{.min_tokens = -1}) == "min_tokens must be >= 0, got -1");
  for (const auto& params : {SamplingParams{.presence_penalty = kNaN}, SamplingParams{.frequency_penalty = kNaN},
                             SamplingParams{.repetition_penalty = kNaN}}) {
    CHECK(refusal(params).ends_with("nan"));
  }
  CHECK(refusal(TokenRules{.logit_bias = {{0, 101.0F}}}) == "logit_bias must be in [-100, 100], got 101.000000");
  CHECK(refusal(TokenRules{.logit_bias = {{0, kNaN}}}) == "logit_bias must be in [-100, 100], got nan");
  CHECK(refusal(TokenRules{.logit_bias = {{-1, 1.0F}}}) == "logit_bias must be of token ids >= 0, got -1");
  CHECK(refusal(TokenRules{.allowed_token_ids = {1, -2}}) == "allowed_token_ids must be token ids >= 0, got -2");
  CHECK(refusal(TokenRules{.end_token_ids = {-3}}) == "end_token_ids must be token ids >= 0, got -3");
  CHECK(refusal(TokenRules{.bad_words = {{}}}) == "bad_words must be words of at least one token, got 0");
  CHECK(refusal(TokenRules{.bad_words = {{-4}}}) == "bad_words must be token ids >= 0, got -4");
  CHECK(refusal(TokenRules{.logit_bias = {{0, 100.0F}}, .bad_words = {{0, 1}}}).empty());
  CHECK(refusal(SamplingParams{.presence_penalty = -2.0F, .frequency_penalty = 2.0F, .min_tokens = 9}).empty());
}

}  // namespace
}  // namespace fastpaged
