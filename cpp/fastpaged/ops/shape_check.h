// ShapeCheck: the arrays of one op against shapes written in names. A name takes the size it first meets, so that one
// line is documentation, check and message:
//
//   ShapeCheck check("rms_norm");
//   check.expect("x", params.x, DType::kFloat32, {"T", "H"});
//   check.expect("out", params.out, DType::kBFloat16, {"T", "H"});  // rms_norm: out must be bfloat16 [T=3, H=64], got
//   ...
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "fastpaged/base/tensor_view.h"

namespace fastpaged {

class ShapeCheck {
 public:
  explicit ShapeCheck(const char* op) : op_(op) {}

  // Rows (axes 1 and on, or the only axis) must be dense; axis 0 may have any stride.
  // Throws std::invalid_argument. REQUIRES: names are string literals, at most 12 of them per check.
  void expect(const char* field, const TensorView& view, DType dtype, std::initializer_list<const char*> shape);
  // The same for the activation dtype: bfloat16 or float32, whichever the first such array of this check is in.
  void expect_activation(const char* field, const TensorView& view, std::initializer_list<const char*> shape);
  // The same, or 8-bit codes; but only the last axis must be dense.
  void expect_kv_cache(const char* field, const TensorView& view, std::initializer_list<const char*> shape);

  // A size that follows from others: bind("2 F", 2 * check.size("F")).
  void bind(const char* name, std::int64_t size);
  [[nodiscard]] std::int64_t size(std::string_view name) const;  // REQUIRES: bound

  // Throws unless low <= size(name) <= high.
  void expect_size(const char* name, std::int64_t low, std::int64_t high) const;
  // Throws with "op: " before the message.
  [[noreturn]] void fail(const std::string& message) const;

 private:
  struct Binding {
    const char* name;
    std::int64_t size;
  };
  static constexpr int kMaxBindings = 12;

  [[nodiscard]] const Binding* find(std::string_view name) const;
  // dtypes: in words, of which view's is one if dtype_matches.
  void match(const char* field, const TensorView& view, bool dtype_matches, const char* dtypes,
             std::initializer_list<const char*> shape);
  void match_activation(const char* field, const TensorView& view, std::initializer_list<const char*> shape);
  void require_dense_rows(const char* field, const TensorView& view) const;
  [[noreturn]] void mismatch(const char* field, const TensorView& view, const char* dtypes,
                             std::initializer_list<const char*> shape) const;

  const char* op_;
  std::array<Binding, kMaxBindings> bindings_{};
  int num_bindings_ = 0;
  std::optional<DType> activation_dtype_;
};

// "float32", "bfloat16", "int32", "fp8_e4m3", "fp8_e5m2", "int8"
const char* name_of(DType dtype);

}  // namespace fastpaged
