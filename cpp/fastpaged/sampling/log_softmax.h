// Logprobs of a row's tokens, from what its weights add up to.
#pragma once

#include <cmath>
#include <limits>

#include "fastpaged/sampling/scaled_row.h"
#include "fastpaged/sampling/token_weights.h"

namespace fastpaged {

class LogSoftmax {
 public:
  // Leaves the sums of all tokens in `weights`.
  LogSoftmax(const ScaledRow& row, TokenWeights& weights)
      : max_(static_cast<double>(row.scan.max)), temperature_(static_cast<double>(row.temperature)) {
    weights.assign_sums(row);
    log_total_ = std::log(weights.total());
  }

  // Below what a float32 can hold, C++ leaves the conversion open; a log-softmax in float32 gives -inf there.
  [[nodiscard]] float operator()(float logit) const {
    const double logprob = (static_cast<double>(logit) - max_) / temperature_ - log_total_;
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    return logprob < static_cast<double>(std::numeric_limits<float>::lowest()) ? -kInfinity
                                                                               : static_cast<float>(logprob);
  }

 private:
  double max_;
  double temperature_;
  double log_total_ = 0.0;
};

}  // namespace fastpaged
