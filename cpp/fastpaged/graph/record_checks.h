// What recording says about arguments that do not fit.
#pragma once

#include <cstdint>
#include <string>

#include "fastpaged/base/check.h"
#include "fastpaged/graph/node.h"
#include "fastpaged/ops/shape_check.h"

namespace fastpaged {

inline const char* name_of(RowKind rows) {
  return rows == RowKind::kTokens ? "tokens" : "samples";
}

inline std::string said(const char* op, const char* argument) {
  return std::string(op) + ": " + argument;
}

inline void require_equal(const char* op, const char* what, std::int64_t expected, std::int64_t given) {
  require(given == expected,
          [&] { return said(op, what) + " = " + std::to_string(expected) + ", got " + std::to_string(given); });
}

inline void require_tensor(const char* op, const char* argument, const TensorView& tensor, DType dtype, int rank) {
  require(!tensor.empty() && tensor.dtype == dtype && tensor.rank == rank && tensor.strides[rank - 1] == 1, [&] {
    return said(op, argument) + " must be a " + name_of(dtype) + " array of rank " + std::to_string(rank) +
           " with dense rows, got " + name_of(tensor.dtype) + " of rank " + std::to_string(tensor.rank);
  });
}

// float32 [size]. what: the argument and, in words, its size.
inline void require_vector(const char* op, const char* what, const TensorView& tensor, std::int64_t size) {
  const std::string argument(what, std::string_view(what).find(' '));
  require_tensor(op, argument.c_str(), tensor, DType::kFloat32, 1);
  require_equal(op, what, size, tensor.shape[0]);
}

}  // namespace fastpaged
