#include "fastpaged/sampling/token_order.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <utility>

namespace fastpaged {
namespace {

// A logit that at least n tokens reach: n blocks have a maximum that large.
float reached_by(const RowScan& scan, std::int32_t n, std::vector<RankedToken>& scratch) {
  if (n > static_cast<std::int32_t>(scan.block_max.size())) {
    return -std::numeric_limits<float>::infinity();
  }
  scratch.clear();
  for (const float max : scan.block_max) {
    scratch.push_back({max, 0});
  }
  std::nth_element(scratch.begin(), scratch.begin() + (n - 1), scratch.end(), better);
  return scratch[n - 1].logit;
}

// Logits [low, high), and how many tokens are better than all of those.
struct Band {
  float low;
  float high;
  std::int64_t num_better;
};

// A band that holds the n-th best token; seldom more than a fifth of a row. A sample of the row says where to look, and
// is not trusted: all tokens are counted.
Band band_of(const LogitRow& row, std::int32_t n) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr std::int64_t kSamples = 512;
  constexpr std::int64_t kSlack = 32;  // in the sample's ranks: nearly three standard deviations
  if (row.size() < 4 * kSamples) {
    return {-kInfinity, kInfinity, 0};
  }
  std::array<float, kSamples> sample;
  for (std::int64_t i = 0; i < kSamples; ++i) {
    sample[i] = row[static_cast<TokenId>(i * row.size() / kSamples)];
  }
  std::sort(sample.begin(), sample.end(), std::greater<>());
  const std::int64_t at = n * kSamples / row.size();
  const auto num_from = [&](float floor) { return row.passes().count_from(row.data(), row.size(), floor); };
  std::int64_t num_above = 0;
  float high = kInfinity;
  if (at >= kSlack) {
    high = sample[at - kSlack];
    num_above = num_from(high);
    if (num_above >= n) {
      return {high, kInfinity, 0};
    }
  }
  if (at + kSlack < kSamples) {
    const float low = sample[at + kSlack];
    const std::int64_t num_from_low = num_from(low);
    return num_from_low >= n ? Band{low, high, num_above} : Band{-kInfinity, low, num_from_low};
  }
  return {-kInfinity, high, num_above};
}

}  // namespace

RankedToken nth_best(const LogitRow& row, const RowScan& scan, std::int32_t n, std::vector<RankedToken>& scratch) {
  if (n <= row.num_blocks()) {
    select_best(row, scan, n, scratch);
    return scratch[n - 1];
  }
  const Band band = band_of(row, n);
  if (std::cmp_less(scratch.size(), row.size())) {
    scratch.resize(static_cast<std::size_t>(row.size()));
  }
  std::ptrdiff_t size = 0;
  for (TokenId id = 0; id < row.size(); ++id) {
    const float logit = row[id];
    scratch[size] = {logit, id};
    size += static_cast<int>(logit >= band.low) & static_cast<int>(logit < band.high);  // no branch to mispredict
  }
  const auto nth = scratch.begin() + (n - 1 - band.num_better);
  std::nth_element(scratch.begin(), nth, scratch.begin() + size, better);
  return *nth;
}

void select_best(const LogitRow& row, const RowScan& scan, std::int32_t n, std::vector<RankedToken>& tokens) {
  const float floor = reached_by(scan, n, tokens);
  tokens.clear();
  for (std::int32_t b = 0; b < row.num_blocks(); ++b) {
    if (scan.block_max[b] < floor) {
      continue;
    }
    const TokenId begin = b * kLogitBlock;
    const TokenId end = std::min(begin + kLogitBlock, row.size());
    for (TokenId id = begin; id < end; ++id) {
      if (row[id] >= floor) {
        tokens.push_back({row[id], id});
      }
    }
  }
  std::nth_element(tokens.begin(), tokens.begin() + (n - 1), tokens.end(), better);
}

std::int32_t rank_of(const LogitRow& row, TokenId id) {
  const float* logits = row.data();
  const float logit = logits[id];
  const float next = std::nextafter(logit, std::numeric_limits<float>::infinity());
  const auto count_from = row.passes().count_from;
  return static_cast<std::int32_t>(1 + count_from(logits, id, logit) +
                                   count_from(logits + id + 1, row.size() - id - 1, next));
}

}  // namespace fastpaged
