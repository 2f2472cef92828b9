#include <doctest/doctest.h>

#include <bit>
#include <cfenv>
#include <limits>
#include <random>
#include <set>
#include <stdexcept>

#include "fastpaged/sampling/philox.h"
#include "fastpaged/sampling/sampler.h"
#include "sampling/model.h"

namespace fastpaged {
namespace {

using testing::kInf;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Each request looks at the row of its own place.
SamplerOutput sample(ThreadPool& pool, std::vector<std::vector<float>> rows, std::vector<SampleRequest> requests) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].row = static_cast<std::int32_t>(i);
  }
  std::vector<float> logits;
  for (const std::vector<float>& row : rows) {
    logits.insert(logits.end(), row.begin(), row.end());
  }
  const auto num_rows = static_cast<std::int64_t>(rows.size());
  const auto vocab = static_cast<std::int64_t>(rows.at(0).size());
  return Sampler(pool).sample(TensorView::dense(logits.data(), DType::kFloat32, {num_rows, vocab}), requests);
}

// One row of an output, floats as their bits.
struct Row {
  std::int32_t token_id;
  bool ok;
  std::uint32_t logprob;
  std::int32_t rank;
  std::vector<std::int32_t> top_ids;
  std::vector<std::uint32_t> top_logprobs;
  bool operator==(const Row&) const = default;
};

Row row_of(const SamplerOutput& output, std::size_t r) {
  Row row = {output.tokens[r].token_id,
             output.tokens[r].ok,
             std::bit_cast<std::uint32_t>(output.logprobs[r]),
             output.ranks[r],
             {},
             {}};
  for (std::int32_t i = output.top_offsets[r]; i < output.top_offsets[r + 1]; ++i) {
    row.top_ids.push_back(output.top_ids[i]);
    row.top_logprobs.push_back(std::bit_cast<std::uint32_t>(output.top_logprobs[i]));
  }
  return row;
}

SampleRequest greedy(std::optional<std::int32_t> num_logprobs = std::nullopt) {
  SampleRequest request;
  request.params.temperature = 0.0F;
  request.params.num_logprobs = num_logprobs;
  return request;
}

std::vector<float> resized(std::vector<float> logits, std::size_t size) {
  logits.resize(size, 0.25F);
  return logits;
}

TEST_CASE("a row's bits depend neither on its batch mates nor on the thread count") {
  std::mt19937 random(1);
  ThreadPool one(1);
  ThreadPool two(2);
  for (int trial = 0; trial < 60; ++trial) {
    const std::size_t vocab = 1 + random() % 700;
    std::vector<std::vector<float>> rows;
    std::vector<SampleRequest> requests;
    for (int r = 0; r < 9; ++r) {
      rows.push_back(resized(testing::random_logits(random), vocab));
      requests.push_back({testing::random_params(random), static_cast<std::int64_t>(random() % 1000)});
      if (random() % 2 == 0) {
        requests.back().params.num_logprobs = static_cast<std::int32_t>(random() % 6);
      }
      if (r % 3 == 2) {
        rows.back()[random() % vocab] = r % 2 == 0 ? kNaN : kInf;
      }
    }
    const SamplerOutput together = sample(one, rows, requests);
    const SamplerOutput threaded = sample(two, rows, requests);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const Row alone = row_of(sample(two, {rows[r]}, {requests[r]}), 0);
      REQUIRE(row_of(together, r) == alone);
      REQUIRE(row_of(threaded, r) == alone);
    }
  }
}

TEST_CASE("a row's bits do not depend on the rounding mode of the calling thread, which stays as it was") {
  std::mt19937 random(4);
  ThreadPool pool(1);
  for (int trial = 0; trial < 50; ++trial) {
    const std::vector<float> logits = testing::random_logits(random);
    SampleRequest request{testing::random_params(random), trial};
    request.params.num_logprobs = 5;
    const Row expected = row_of(sample(pool, {logits}, {request}), 0);
    REQUIRE(std::fesetround(FE_UPWARD) == 0);
    const SamplerOutput output = sample(pool, {logits}, {request});
    const int mode = std::fegetround();
    std::fesetround(FE_TONEAREST);
    REQUIRE(mode == FE_UPWARD);
    REQUIRE(row_of(output, 0) == expected);
  }
}

TEST_CASE("logprobs, ranks and alternatives are those of the raw logits in the float64 model") {
  std::mt19937 random(2);
  ThreadPool pool(1);
  for (int trial = 0; trial < 300; ++trial) {
    const std::vector<float> logits = testing::random_logits(random);
    SampleRequest request{testing::random_params(random), trial};
    const auto wanted = static_cast<std::int32_t>(random() % 8);
    request.params.num_logprobs = wanted;
    const SamplerOutput output = sample(pool, {logits}, {request});
    REQUIRE(output.tokens[0].ok);
    const std::vector<double> logprobs = testing::log_softmax(logits);
    const std::vector<std::int32_t> order = testing::order_of(logits);
    const auto matches = [&](float logprob, std::int32_t id) {
      const double expected = logprobs[id];
      return static_cast<double>(logprob) == expected ||
             std::fabs(static_cast<double>(logprob) - expected) <= 1e-6 + 0x1p-23 * std::fabs(expected);
    };
    const std::int32_t id = output.tokens[0].token_id;
    REQUIRE(matches(output.logprobs[0], id));
    REQUIRE(order[output.ranks[0] - 1] == id);
    REQUIRE(output.top_offsets[1] == std::min(wanted, static_cast<std::int32_t>(logits.size())));
    for (std::int32_t i = 0; i < output.top_offsets[1]; ++i) {
      REQUIRE(output.top_ids[i] == order[i]);
      REQUIRE(matches(output.top_logprobs[i], order[i]));
    }
  }
}

TEST_CASE("a logprob below the least float32 is -inf, and the least itself is kept") {
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  ThreadPool pool(1);
  const SamplerOutput far = sample(pool, {{kLowest, -kLowest}}, {greedy(2)});
  CHECK(far.logprobs == std::vector<float>{0.0F});
  CHECK(far.top_ids == std::vector<std::int32_t>{1, 0});
  CHECK(far.top_logprobs == std::vector<float>{0.0F, -kInf});
  const SamplerOutput near = sample(pool, {{kLowest, 0.0F}}, {greedy(2)});
  CHECK(near.top_logprobs == std::vector<float>{0.0F, kLowest});
}

TEST_CASE("the sampled token is the one whose share of the kept tokens holds uniform(seed, position)") {
  std::mt19937 random(3);
  ThreadPool pool(1);
  for (int trial = 0; trial < 1000; ++trial) {
    const std::vector<float> logits = testing::random_logits(random);
    const SampleRequest request{testing::random_params(random), trial};
    const std::int32_t id = sample(pool, {logits}, {request}).tokens[0].token_id;
    const double u = uniform(request.params.seed, request.position);
    const std::vector<double> weights = testing::weights_of(logits, request.params.temperature);
    const std::vector<std::int32_t> order = testing::order_of(logits);
    constexpr double kRounding = 2e-5;
    const std::size_t most = testing::num_kept(logits, request.params, kRounding);
    bool holds = false;
    for (std::size_t n = testing::num_kept(logits, request.params, -kRounding); n <= most && !holds; ++n) {
      double total = 0.0;
      double before = 0.0;
      bool is_kept = false;
      for (std::size_t i = 0; i < n; ++i) {
        total += weights[order[i]];
        before += order[i] < id ? weights[order[i]] : 0.0;
        is_kept |= order[i] == id;
      }
      holds = is_kept && before / total - kRounding <= u && u <= (before + weights[id]) / total + kRounding;
    }
    CAPTURE(trial);
    REQUIRE(holds);
  }
}

TEST_CASE("temperature 0 takes the best token, the smaller id of equals, whatever the filters say") {
  ThreadPool pool(1);
  SampleRequest request = greedy();
  request.params.top_p = 0.1F;
  request.params.top_k = 2;
  request.params.min_p = 0.5F;
  const SamplerOutput output =
      sample(pool, {{0.0F, 3.0F, -1.0F, 3.0F}, {-kInf, -5.0F, -5.0F, -9.0F}}, {request, request});
  CHECK(output.tokens[0].token_id == 1);
  CHECK(output.tokens[1].token_id == 1);
}

TEST_CASE("another seed or position draws another number, the same ones the same") {
  ThreadPool pool(1);
  const std::vector<float> flat(5000, 0.0F);
  const auto token = [&](std::uint64_t seed, std::int64_t position) {
    SampleRequest request;
    request.params.seed = seed;
    request.position = position;
    return sample(pool, {flat}, {request}).tokens[0].token_id;
  };
  CHECK(token(7, 3) == token(7, 3));
  CHECK(token(7, 3) != token(7, 4));
  CHECK(token(7, 3) != token(8, 3));
  CHECK(token(7, 3) == static_cast<std::int32_t>(uniform(7, 3) * 5000));
}

TEST_CASE("a row with a NaN, or with nothing but -inf, is not ok and says nothing else") {
  ThreadPool pool(1);
  SampleRequest seeded;
  seeded.params.num_logprobs = 2;
  const SamplerOutput output =
      sample(pool, {{1.0F, kNaN, 2.0F}, {-kInf, -kInf, -kInf}, {kInf, kNaN, 0.0F}, {0.0F, 1.0F, 2.0F}},
             {seeded, greedy(2), seeded, greedy(2)});
  for (std::size_t r = 0; r < 3; ++r) {
    CHECK(row_of(output, r) == Row{0, false, 0, 0, {}, {}});
  }
  CHECK(output.tokens[3].ok);
  CHECK(output.tokens[3].token_id == 2);
  CHECK(row_of(output, 3).top_ids == std::vector<std::int32_t>{2, 1});
}

TEST_CASE("a row without a token that may come is not ok, and no other row notices") {
  ThreadPool pool(1);
  SampleRequest barred = greedy(2);
  barred.params.rules = std::make_shared<const TokenRules>(TokenRules{.allowed_token_ids = {0, 2}, .bad_words = {{2}}});
  const SamplerOutput output =
      sample(pool, {{-kInf, 1.0F, 2.0F}, {0.0F, 1.0F, 2.0F}, {-kInf, 1.0F, 2.0F}}, {barred, barred, greedy()});
  CHECK(row_of(output, 0) == Row{0, false, 0, 0, {}, {}});
  CHECK(output.tokens[1].ok);
  CHECK(output.tokens[1].token_id == 0);
  CHECK(row_of(output, 1).top_ids == std::vector<std::int32_t>{2, 1});
  CHECK(output.ranks[1] == 3);
  CHECK(row_of(output, 2) == Row{2, true, 0, 0, {}, {}});
}

TEST_CASE("a token at +inf that may not come leaves the others as they were") {
  ThreadPool pool(1);
  SampleRequest request = greedy(1);
  request.params.rules = std::make_shared<const TokenRules>(TokenRules{.allowed_token_ids = {0, 2}});
  const SamplerOutput output = sample(pool, {{1.0F, kInf, 2.0F}}, {request});
  CHECK(output.tokens[0].token_id == 2);
  CHECK(output.logprobs[0] == -kInf);
  CHECK(output.top_ids == std::vector<std::int32_t>{1});
}

TEST_CASE("tokens at +inf share the probability evenly and leave none to the others") {
  ThreadPool pool(1);
  const std::vector<float> logits = {5.0F, kInf, -kInf, kInf};
  const SamplerOutput best = sample(pool, {logits}, {greedy(4)});
  CHECK(best.tokens[0].ok);
  CHECK(best.tokens[0].token_id == 1);
  CHECK(best.logprobs[0] == doctest::Approx(-std::log(2.0)));
  CHECK(best.top_ids[0] == 1);
  CHECK(best.top_ids[1] == 3);
  CHECK(best.top_logprobs[2] == -kInf);
  std::vector<int> counts(4);
  for (std::int64_t position = 0; position < 64; ++position) {
    SampleRequest request;
    request.position = position;
    const std::int32_t id = sample(pool, {logits}, {request}).tokens[0].token_id;
    CHECK(id == (uniform(0, position) < 0.5 ? 1 : 3));
    ++counts[id];
  }
  CHECK(counts[1] > 0);
  CHECK(counts[3] > 0);
}

TEST_CASE("logprobs are given only to those who ask, and 0 alternatives is a way of asking") {
  ThreadPool pool(1);
  const std::vector<float> logits = {0.0F, 1.0F};
  const SamplerOutput output = sample(pool, {logits, logits, logits}, {greedy(), greedy(0), greedy(9)});
  CHECK(row_of(output, 0) == Row{1, true, 0, 0, {}, {}});
  CHECK(output.logprobs[1] == doctest::Approx(-std::log1p(std::exp(-1.0))));
  CHECK(output.ranks[1] == 1);
  CHECK(output.top_offsets == std::vector<std::int32_t>{0, 0, 0, 2});
}

TEST_CASE("rows may lie apart in memory") {
  ThreadPool pool(1);
  std::vector<float> logits = {0.0F, 1.0F, 99.0F, 4.0F, 3.0F, 99.0F};
  TensorView view = TensorView::dense(logits.data(), DType::kFloat32, {2, 2});
  view.strides[0] = 3;
  std::vector<SampleRequest> requests = {greedy(), greedy()};
  requests[1].row = 1;
  const SamplerOutput output = Sampler(pool).sample(view, requests);
  CHECK(output.tokens[0].token_id == 1);
  CHECK(output.tokens[1].token_id == 0);
}

TEST_CASE("several requests may look at one row: each is answered as if it were alone") {
  ThreadPool one(1);
  ThreadPool two(2);
  std::vector<float> logits = {0.0F, 1.0F, 0.5F, -1.0F, 2.0F, 2.0F, 0.25F, 0.0F};
  const TensorView view = TensorView::dense(logits.data(), DType::kFloat32, {2, 4});
  std::vector<SampleRequest> requests;
  for (std::int32_t i = 0; i < 40; ++i) {
    SampleRequest& request = requests.emplace_back();
    request.params.num_logprobs = i % 3;
    request.params.seed = 5;
    request.row = i % 5 == 0 ? 1 : 0;
    request.sample_index = i;
  }
  requests[7] = {.given = 2, .row = 1};
  const SamplerOutput together = Sampler(one).sample(view, requests);
  const SamplerOutput threaded = Sampler(two).sample(view, requests);
  REQUIRE(together.tokens.size() == requests.size());
  std::set<std::int32_t> drawn;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const SamplerOutput alone = Sampler(one).sample(view, std::span(requests).subspan(i, 1));
    CHECK(row_of(together, i) == row_of(alone, 0));
    CHECK(row_of(threaded, i) == row_of(alone, 0));
    drawn.insert(together.tokens[i].token_id);
  }
  CHECK(drawn.size() == 4);
}

TEST_CASE("sample i of a request draws what a single request with seed mix(seed, i) draws") {
  ThreadPool pool(1);
  std::vector<float> flat(997, 0.0F);
  for (std::int32_t i = 0; i < 50; ++i) {
    SampleRequest request;
    request.params.seed = 11;
    request.position = 3 * i;
    request.sample_index = i;
    SampleRequest single = request;
    single.params.seed = mix(11, static_cast<std::uint64_t>(i));
    single.sample_index = 0;
    CHECK(sample(pool, {flat}, {request}).tokens[0].token_id == sample(pool, {flat}, {single}).tokens[0].token_id);
  }
}

TEST_CASE("a request for a row that is not there is refused") {
  ThreadPool pool(1);
  Sampler sampler(pool);
  std::vector<float> logits(6);
  const TensorView view = TensorView::dense(logits.data(), DType::kFloat32, {2, 3});
  for (const std::int32_t row : {-1, 2}) {
    const std::vector<SampleRequest> requests = {greedy(), {.row = row}};
    CHECK_THROWS_WITH_AS(
        sampler.sample(view, requests),
        ("a request's row must be one of the 2 rows of logits, from 0 on, got " + std::to_string(row)).c_str(),
        std::invalid_argument);
  }
}

TEST_CASE("no rows give an empty output") {
  ThreadPool pool(2);
  float unused = 0.0F;
  const SamplerOutput output = Sampler(pool).sample(TensorView::dense(&unused, DType::kFloat32, {0, 5}), {});
  CHECK(output.tokens.empty());
  CHECK(output.top_offsets == std::vector<std::int32_t>{0});
}

TEST_CASE("logits of the wrong shape or dtype are refused with what was given and what is allowed") {
  ThreadPool pool(1);
  Sampler sampler(pool);
  std::vector<float> logits(6);
  const std::vector<SampleRequest> two = {greedy(), greedy()};
  const auto view = [&](DType dtype, std::initializer_list<std::int64_t> shape) {
    return TensorView::dense(logits.data(), dtype, shape);
  };
  CHECK_THROWS_AS(sampler.sample(view(DType::kFloat32, {6}), two), std::invalid_argument);
  CHECK_THROWS_AS(sampler.sample(view(DType::kBFloat16, {2, 3}), two), std::invalid_argument);
  CHECK_THROWS_AS(sampler.sample(view(DType::kFloat32, {2, 0}), two), std::invalid_argument);
  TensorView transposed = view(DType::kFloat32, {2, 3});
  transposed.strides[0] = 1;
  transposed.strides[1] = 2;
  CHECK_THROWS_AS(sampler.sample(transposed, two), std::invalid_argument);
}

}  // namespace
}  // namespace fastpaged
