// The tests' random choices: a function of the seed alone, the same with every standard library.
#pragma once

#include <cstdint>
#include <iterator>
#include <random>

namespace fastpaged::test {

class Random {
 public:
  explicit Random(std::uint32_t seed) : engine_(seed) {}
  // In [low, high].
  [[nodiscard]] std::int32_t between(std::int32_t low, std::int32_t high) {
    return low + static_cast<std::int32_t>(engine_() % static_cast<std::uint32_t>(high - low + 1));
  }
  [[nodiscard]] bool once_in(std::int32_t n) { return between(1, n) == 1; }
  [[nodiscard]] std::uint32_t bits() { return static_cast<std::uint32_t>(engine_()); }
  // One of them. REQUIRES: not empty.
  template <typename Items>
  [[nodiscard]] auto& one_of(Items& items) {
    return *std::next(items.begin(), between(0, static_cast<std::int32_t>(items.size()) - 1));
  }

 private:
  std::mt19937 engine_;
};

}  // namespace fastpaged::test
