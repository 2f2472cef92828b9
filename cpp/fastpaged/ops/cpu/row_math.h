// What several ops do to one row of numbers. A sum is a tree fixed by the row's size: four running vectors, lane by
// lane, joined in one order.
#pragma once

#include <cstdint>

#include "fastpaged/ops/cpu/vector.h"

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)
namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

// out = x, in the elements of out.
template <typename Element>
static inline void convert(const float* x, std::int64_t size, Element* out) {
  for (std::int64_t i = 0; i < size; i += kLanes) {
    store(out + i, load(x + i, size - i), size - i);
  }
}

// x += y
static inline void add_to(float* x, const float* y, std::int64_t size) {
  for (std::int64_t i = 0; i < size; i += kLanes) {
    store(x + i, add(load(x + i, size - i), load(y + i, size - i)), size - i);
  }
}

static inline float join_sums(const Floats (&sums)[4]) {
  return sum_of_lanes(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

// The sum of x - center.
static inline float sum(const float* x, std::int64_t size, float center = 0.0F) {
  const Floats centers = set1(center);
  Floats sums[4] = {zero(), zero(), zero(), zero()};
  for (std::int64_t i = 0; i < size; i += 4 * kLanes) {
    for (std::int64_t j = 0; j < 4 && i + j * kLanes < size; ++j) {
      const std::int64_t at = i + j * kLanes;
      sums[j] = add(sums[j], first_lanes(size - at, sub(load(x + at, size - at), centers), zero()));
    }
  }
  return join_sums(sums);
}

// The sum of (x - center)^2.
static inline float sum_of_squares(const float* x, std::int64_t size, float center = 0.0F) {
  const Floats centers = set1(center);
  Floats sums[4] = {zero(), zero(), zero(), zero()};
  for (std::int64_t i = 0; i < size; i += 4 * kLanes) {
    for (std::int64_t j = 0; j < 4 && i + j * kLanes < size; ++j) {
      const std::int64_t at = i + j * kLanes;
      const Floats difference = first_lanes(size - at, sub(load(x + at, size - at), centers), zero());
      sums[j] = fma(difference, difference, sums[j]);
    }
  }
  return join_sums(sums);
}

// 1 / sqrt(sum / size + eps)
static inline Floats inverse_root_of_mean(float sum, std::int64_t size, float eps) {
  return div(set1(1.0F), sqrt(set1(sum / static_cast<float>(size) + eps)));
}

// out = x / sqrt(mean(x^2) + eps) * weight
template <typename Element>
static inline void rms_normalize(const float* x, const float* weight, float eps, std::int64_t size, Element* out) {
  const Floats scale = inverse_root_of_mean(sum_of_squares(x, size), size, eps);
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const std::int64_t count = size - i;
    store(out + i, mul(mul(load(x + i, count), scale), load(weight + i, count)), count);
  }
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
FASTPAGED_END_TARGET
