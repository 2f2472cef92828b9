// The ops of a table on plain vectors of numbers, for tests: arrays of exactly the size the op may touch.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "fastpaged/ops/element.h"
#include "fastpaged/ops/op_table.h"

namespace fastpaged {

using Floats = std::vector<float>;

template <typename A>
constexpr DType kDType = std::is_same_v<A, BFloat16> ? DType::kBFloat16 : DType::kFloat32;

template <typename A>
TensorView view_of(std::vector<A>& values, std::initializer_list<std::int64_t> shape) {
  return values.empty() ? TensorView{} : TensorView::dense(values.data(), kDType<A>, shape);
}
inline TensorView view_of(std::vector<std::int32_t>& values, std::initializer_list<std::int64_t> shape) {
  return TensorView::dense(values.data(), DType::kInt32, shape);
}

template <typename A>
std::vector<A> random_numbers(std::mt19937& random, std::int64_t count, float scale = 1.0F) {
  std::normal_distribution<float> normal;
  std::vector<A> numbers(static_cast<std::size_t>(count));
  for (A& number : numbers) {
    number = rounded_to<A>(normal(random) * scale);
  }
  return numbers;
}

template <typename A>
Floats widened(const std::vector<A>& values) {
  Floats floats;
  for (const A& value : values) {
    floats.push_back(to_float(value));
  }
  return floats;
}

// The tables but scalar, which judges them.
inline std::vector<std::string> fast_isas() {
  std::vector<std::string> isas = supported_isas();
  std::erase(isas, "scalar");
  return isas;
}

}  // namespace fastpaged
