// LogitPasses: the loops over a row of logits that sampling is made of, compiled for each instruction set.
//
// All tables give the same bits: lanes hold float32 operations that would be the same alone, and sums of float64 have
// one fixed tree. A row is seen as blocks of kLogitBlock; what follows its last logit is the caller's to fill.
#pragma once

#include <cstdint>

namespace fastpaged {

inline constexpr std::int32_t kLogitBlock = 128;

// weight = exp((logit - max) / temperature): within 2^-23 of it down to exp(-87), exactly 0 below that and exactly 1
// at the maximum.
struct WeighParams {
  const float* logits = nullptr;     // [num_blocks * kLogitBlock], no NaN, none above max
  const float* block_max = nullptr;  // [num_blocks]
  std::int64_t num_blocks = 0;
  float max = 0.0F;          // finite
  float temperature = 1.0F;  // finite and > 0
  // Tokens below it, or at it with an index above last_tie, get weight 0. -inf drops none.
  float cutoff = 0.0F;
  std::int32_t last_tie = 0;
  float* weights = nullptr;      // [num_blocks * kLogitBlock], or null: not kept; blocks wholly below it stay unwritten
  double* block_sums = nullptr;  // [num_blocks]; 0 for those
};

struct LogitPasses {
  // Fills maxima [num_blocks]; whether there is a NaN, and the maxima mean nothing then.
  bool (*block_maxima)(const float* logits, std::int64_t num_blocks, float* maxima);
  void (*weigh)(const WeighParams& params);
  // Logits that are >= floor, of the first `size`. No NaN.
  std::int64_t (*count_from)(const float* logits, std::int64_t size, float floor);
};

// Those of the scalar table.
extern const LogitPasses scalar_logit_passes;

}  // namespace fastpaged
