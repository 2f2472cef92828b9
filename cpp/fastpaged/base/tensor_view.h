// TensorView: where a tensor lies and how it is shaped. It never owns the memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "fastpaged/base/check.h"

namespace fastpaged {

// The last three are of the KV cache alone: one-byte codes that are worth something with a scale (ops/kv_codes.h).
enum class DType : std::uint8_t { kFloat32, kBFloat16, kInt32, kFp8E4M3, kFp8E5M2, kInt8 };

constexpr bool is_kv_code(DType dtype) {
  return dtype == DType::kFp8E4M3 || dtype == DType::kFp8E5M2 || dtype == DType::kInt8;
}

constexpr std::size_t size_of(DType dtype) {
  return is_kv_code(dtype) ? 1 : dtype == DType::kBFloat16 ? 2 : 4;
}

// bfloat16 as its bits: the upper half of a float32.
struct BFloat16 {
  std::uint16_t bits;
};

struct TensorView {
  static constexpr int kMaxRank = 6;

  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};  // in elements, not bytes

  // A dense row-major view.
  static TensorView dense(void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
    invariant(shape.size() <= kMaxRank, "TensorView: rank above kMaxRank");
    TensorView view;
    view.data = data;
    view.dtype = dtype;
    view.rank = static_cast<int>(shape.size());
    int axis = 0;
    for (const std::int64_t size : shape) {
      view.shape[axis++] = size;
    }
    std::int64_t stride = 1;
    for (int i = view.rank - 1; i >= 0; --i) {
      view.strides[i] = stride;
      stride *= view.shape[i];
    }
    return view;
  }

  [[nodiscard]] bool empty() const { return data == nullptr; }

  template <typename T>
  [[nodiscard]] T* ptr() const {
    return static_cast<T*>(data);
  }

  // The first element of row i along axis 0.
  template <typename T>
  [[nodiscard]] T* row(std::int64_t i) const {
    return static_cast<T*>(data) + i * strides[0];
  }
};

}  // namespace fastpaged
