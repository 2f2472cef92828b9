// waits_for: what other threads are to bring about, within a bound that only a failure meets.
#pragma once

#include <chrono>
#include <thread>

namespace fastpaged::testing {

// Whether condition() came true.
template <typename Condition>
bool waits_for(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

}  // namespace fastpaged::testing
