// The order of tokens: better is the larger logit, and of equal logits the smaller id. Greedy choice, ranks,
// alternatives and every filter follow this one order.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "fastpaged/base/types.h"
#include "fastpaged/sampling/logit_row.h"
#include "fastpaged/sampling/row_scan.h"

namespace fastpaged {

struct RankedToken {
  float logit = 0.0F;
  TokenId id = 0;
};

constexpr bool better(const RankedToken& a, const RankedToken& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// The last token kept by a filter: what is worse is dropped. Filters keep the best tokens, so the result of several
// is the strictest of their cutoffs.
using Cutoff = RankedToken;

constexpr Cutoff keep_all() {
  return {-std::numeric_limits<float>::infinity(), std::numeric_limits<TokenId>::max()};
}

constexpr Cutoff stricter(const Cutoff& a, const Cutoff& b) {
  return better(a, b) ? a : b;
}

// Moves the n best tokens of the row to the front of `tokens` (in no order, the n-th best at index n - 1).
// REQUIRES: 0 < n <= row.size(). Cheap for n <= row.num_blocks(): only blocks that hold one of the best are read.
void select_best(const LogitRow& row, const RowScan& scan, std::int32_t n, std::vector<RankedToken>& tokens);

// The n-th best token alone, for any n at the cost of a few passes. REQUIRES: 0 < n <= row.size(). No logit is +inf.
RankedToken nth_best(const LogitRow& row, const RowScan& scan, std::int32_t n, std::vector<RankedToken>& scratch);

// 1 + the number of tokens better than `id`.
std::int32_t rank_of(const LogitRow& row, TokenId id);

}  // namespace fastpaged
