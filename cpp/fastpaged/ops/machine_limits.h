// MachineLimits: how fast this machine can be, as it was measured (ops/machine_kernels.h), and so how fast an op can
// be.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fastpaged/ops/op_cost.h"

namespace fastpaged {

// Of all threads of a run together. A rate of 0 is not known, and limits nothing.
struct MachineLimits {
  double memory_rate = 0.0;        // bytes per second read from memory
  double cache_rate = 0.0;         // bytes per second read by each thread from a cache of its own
  double shared_cache_rate = 0.0;  // bytes per second of what those caches do not hold
  std::int64_t cache_bytes = 0;    // what those caches hold together
  double flop_rate = 0.0;          // floating-point operations per second of the matrix kernel

  // The slowest of the three kinds of work, each at its rate: what is left when they overlap perfectly.
  [[nodiscard]] double seconds(const OpCost& cost) const {
    const double activation_rate = cost.activation_bytes <= cache_bytes ? cache_rate : shared_cache_rate;
    return std::max(step_seconds(cost), at_rate(cost.activation_bytes, activation_rate));
  }
  // The same of a whole step, whose activations may never leave the registers if its ops are fused.
  [[nodiscard]] double step_seconds(const OpCost& cost) const {
    return std::max(at_rate(cost.memory_bytes(), memory_rate), at_rate(cost.flops, flop_rate));
  }

 private:
  static double at_rate(std::int64_t amount, double rate) {
    return rate > 0.0 ? static_cast<double>(amount) / rate : 0.0;
  }
};

}  // namespace fastpaged
