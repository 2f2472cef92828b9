// OpTimes: where the time of a graph's runs goes, by kind of op, and how much of it the machine must take.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "fastpaged/graph/node.h"
#include "fastpaged/ops/machine_limits.h"
#include "fastpaged/ops/op_cost.h"

namespace fastpaged {

// Of all calls of an op that are alike: linear layers of one shape, attention with one window, any other op.
struct OpTime {
  std::size_t op = 0;                   // index into OpTimes::kNames
  std::array<std::int64_t, 2> shape{};  // of linear: features in, out; of attention: its window; else zeros
  std::int64_t num_calls = 0;
  std::chrono::nanoseconds time{0};
  OpCost cost{};               // of all calls
  double limit_seconds = 0.0;  // the limits of all calls, added up

  [[nodiscard]] const char* name() const;
  [[nodiscard]] std::string label() const;  // "linear 576x1536", "paged_attention window 512", "rms_norm"
};

class OpTimes {
 public:
  static constexpr std::size_t kNumOps = std::variant_size_v<NodeParams>;
  // In the order of NodeParams, as OpTable calls them.
  static constexpr std::array<const char*, kNumOps> kNames = {
      "embedding",       "rms_norm", "layer_norm", "linear",     "rotary_cache_write",
      "paged_attention", "soft_cap", "add",        "gather_rows"};

  explicit OpTimes(const MachineLimits& limits) : limits_(limits) {}

  void begin_run() { run_cost_ = {}; }
  // Calls fn, which runs a node with these params (as it sets them), and counts it.
  template <typename Fn>
  void measure(const NodeParams& params, const Fn& fn) {
    const auto begin = std::chrono::steady_clock::now();
    fn();
    count(params, std::chrono::steady_clock::now() - begin);
  }
  void end_run() { runs_limit_seconds_ += limits_.step_seconds(run_cost_); }

  [[nodiscard]] const std::vector<OpTime>& times() const { return times_; }  // in the order of their first calls
  // Each run's limit as a whole (MachineLimits::step_seconds), added up.
  [[nodiscard]] double runs_limit_seconds() const { return runs_limit_seconds_; }

 private:
  void count(const NodeParams& params, std::chrono::nanoseconds time);

  MachineLimits limits_;
  std::vector<OpTime> times_;
  OpCost run_cost_;  // so far
  double runs_limit_seconds_ = 0.0;
};

}  // namespace fastpaged
