// OpTimes: where the time of a graph's runs goes, by kind of op.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "fastpaged/graph/node.h"

namespace fastpaged {

struct OpTime {
  std::int64_t num_calls = 0;
  std::chrono::nanoseconds time{0};
};

class OpTimes {
 public:
  static constexpr std::size_t kNumOps = std::variant_size_v<NodeParams>;
  // In the order of NodeParams, as OpTable calls them.
  static constexpr std::array<const char*, kNumOps> kNames = {
      "embedding",       "rms_norm", "layer_norm", "linear",     "rotary_cache_write",
      "paged_attention", "soft_cap", "add",        "gather_rows"};

  // Calls fn, which runs a node with these params, and counts it.
  template <typename Fn>
  void measure(const NodeParams& params, const Fn& fn) {
    const auto begin = std::chrono::steady_clock::now();
    fn();
    OpTime& of_op = times_[params.index()];
    of_op.time += std::chrono::steady_clock::now() - begin;
    ++of_op.num_calls;
  }

  [[nodiscard]] const std::array<OpTime, kNumOps>& times() const { return times_; }

 private:
  std::array<OpTime, kNumOps> times_{};
};

}  // namespace fastpaged
