#include "fastpaged/sampling/token_order.h"

#include <algorithm>
#include <functional>

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

}  // namespace

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
  std::int32_t num_better = 0;
  for (TokenId i = 0; i < id; ++i) {
    num_better += logits[i] >= logit;
  }
  for (TokenId i = id + 1; i < row.size(); ++i) {
    num_better += logits[i] > logit;
  }
  return num_better + 1;
}

}  // namespace fastpaged
