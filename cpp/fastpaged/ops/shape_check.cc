#include "fastpaged/ops/shape_check.h"

#include <stdexcept>

#include "fastpaged/base/check.h"

namespace fastpaged {
namespace {

// Axes first_axis and on are row-major and without gaps. A stride that is never used does not count.
bool dense_from(const TensorView& view, int first_axis) {
  std::int64_t expected = 1;
  for (int axis = view.rank - 1; axis >= first_axis; --axis) {
    if (view.shape[axis] > 1 && view.strides[axis] != expected) {
      return false;
    }
    expected *= view.shape[axis];
  }
  return true;
}

// No memory is needed for no elements.
bool has_memory(const TensorView& view) {
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.shape[axis] == 0) {
      return true;
    }
  }
  return !view.empty();
}

}  // namespace

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kInt32:
      return "int32";
    case DType::kFp8E4M3:
      return "fp8_e4m3";
    case DType::kFp8E5M2:
      return "fp8_e5m2";
    case DType::kInt8:
      return "int8";
  }
  return "?";
}

void ShapeCheck::expect(const char* field, const TensorView& view, DType dtype,
                        std::initializer_list<const char*> shape) {
  match(field, view, view.dtype == dtype, name_of(dtype), shape);
  require_dense_rows(field, view);
}

void ShapeCheck::expect_activation(const char* field, const TensorView& view,
                                   std::initializer_list<const char*> shape) {
  match_activation(field, view, shape);
  require_dense_rows(field, view);
}

void ShapeCheck::expect_kv_cache(const char* field, const TensorView& view, std::initializer_list<const char*> shape) {
  if (is_kv_code(view.dtype)) {
    match(field, view, true, name_of(view.dtype), shape);
  } else {
    match_activation(field, view, shape);
  }
  if (!dense_from(view, view.rank - 1)) {
    fail(std::string(field) + " must be contiguous along its last axis");
  }
}

void ShapeCheck::require_dense_rows(const char* field, const TensorView& view) const {
  if (!dense_from(view, view.rank == 1 ? 0 : 1)) {
    fail(std::string(field) + " must have contiguous rows");
  }
}

void ShapeCheck::match_activation(const char* field, const TensorView& view, std::initializer_list<const char*> shape) {
  if (activation_dtype_) {
    return match(field, view, view.dtype == *activation_dtype_, name_of(*activation_dtype_), shape);
  }
  const bool is_activation = view.dtype == DType::kBFloat16 || view.dtype == DType::kFloat32;
  match(field, view, is_activation, "bfloat16 or float32", shape);
  activation_dtype_ = view.dtype;
}

void ShapeCheck::match(const char* field, const TensorView& view, bool dtype_matches, const char* dtypes,
                       std::initializer_list<const char*> shape) {
  bool matches = dtype_matches && view.rank == static_cast<int>(shape.size()) && has_memory(view);
  int axis = 0;
  for (const char* name : shape) {
    if (!matches) {
      break;
    }
    const std::int64_t size = view.shape[axis++];
    if (const Binding* binding = find(name)) {
      matches = binding->size == size;
    } else {
      bind(name, size);
    }
  }
  if (!matches) {
    mismatch(field, view, dtypes, shape);
  }
}

void ShapeCheck::bind(const char* name, std::int64_t size) {
  invariant(num_bindings_ < kMaxBindings, "ShapeCheck: too many names");
  bindings_[num_bindings_++] = {name, size};
}

std::int64_t ShapeCheck::size(std::string_view name) const {
  const Binding* binding = find(name);
  invariant(binding != nullptr, "ShapeCheck: size of an unbound name");
  return binding->size;
}

void ShapeCheck::expect_size(const char* name, std::int64_t low, std::int64_t high) const {
  const std::int64_t value = size(name);
  if (value < low || value > high) {
    fail(std::string(name) + " must be in " + std::to_string(low) + ".." + std::to_string(high) + ", got " +
         std::to_string(value));
  }
}

void ShapeCheck::fail(const std::string& message) const {
  throw std::invalid_argument(std::string(op_) + ": " + message);
}

const ShapeCheck::Binding* ShapeCheck::find(std::string_view name) const {
  for (int i = 0; i < num_bindings_; ++i) {
    if (name == bindings_[i].name) {
      return &bindings_[i];
    }
  }
  return nullptr;
}

void ShapeCheck::mismatch(const char* field, const TensorView& view, const char* dtypes,
                          std::initializer_list<const char*> shape) const {
  std::string wanted;
  for (const char* name : shape) {
    const Binding* binding = find(name);
    wanted += (wanted.empty() ? "" : ", ") + std::string(name);
    if (binding != nullptr) {
      wanted.append("=").append(std::to_string(binding->size));
    }
  }
  std::string got;
  for (int axis = 0; axis < view.rank; ++axis) {
    got += (axis == 0 ? "" : ", ") + std::to_string(view.shape[axis]);
  }
  fail(std::string(field) + " must be " + dtypes + " [" + wanted + "], got " +
       (!has_memory(view) ? "nothing" : std::string(name_of(view.dtype)) + " [" + got + "]"));
}

}  // namespace fastpaged
