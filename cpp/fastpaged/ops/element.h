// The activation dtype as a C++ type: what an op written once over both of them needs.
#pragma once

#include <type_traits>

#include "fastpaged/base/tensor_view.h"
#include "fastpaged/ops/bfloat16.h"

namespace fastpaged {

inline float to_float(float x) {
  return x;
}

// x as the nearest A: BFloat16 or float.
template <typename A>
A rounded_to(float x) {
  if constexpr (std::is_same_v<A, BFloat16>) {
    return to_bfloat16(x);
  } else {
    static_assert(std::is_same_v<A, float>);
    return x;
  }
}

// fn(A{}) for the element type A of an activation dtype:
//   with_element(params.q.dtype, [&](auto element) { rotate<decltype(element)>(params); });
// REQUIRES: dtype is bfloat16 or float32.
template <typename Fn>
decltype(auto) with_element(DType dtype, const Fn& fn) {
  return dtype == DType::kBFloat16 ? fn(BFloat16{}) : fn(float{});
}

}  // namespace fastpaged
