#include <doctest/doctest.h>

#include <array>
#include <stdexcept>

#include "fastpaged/ops/shape_check.h"

namespace fastpaged {
namespace {

TEST_CASE("a name takes the size it first meets") {
  std::array<float, 64> memory{};
  ShapeCheck check("op");
  check.expect("x", TensorView::dense(memory.data(), DType::kFloat32, {3, 5}), DType::kFloat32, {"T", "H"});
  CHECK(check.size("T") == 3);
  CHECK(check.size("H") == 5);
  check.expect("y", TensorView::dense(memory.data(), DType::kInt32, {5}), DType::kInt32, {"H"});
  CHECK_THROWS_WITH_AS(
      check.expect("z", TensorView::dense(memory.data(), DType::kFloat32, {5, 3}), DType::kFloat32, {"T", "H"}),
      "op: z must be float32 [T=3, H=5], got float32 [5, 3]", std::invalid_argument);
}

TEST_CASE("dtype, rank and presence are part of a shape") {
  std::array<float, 64> memory{};
  ShapeCheck check("op");
  CHECK_THROWS_WITH_AS(check.expect("x", TensorView::dense(memory.data(), DType::kInt32, {3}), DType::kFloat32, {"T"}),
                       "op: x must be float32 [T], got int32 [3]", std::invalid_argument);
  CHECK_THROWS_WITH_AS(
      check.expect("x", TensorView::dense(memory.data(), DType::kFloat32, {3, 1}), DType::kFloat32, {"T"}),
      "op: x must be float32 [T], got float32 [3, 1]", std::invalid_argument);
  CHECK_THROWS_WITH_AS(check.expect("x", TensorView{}, DType::kFloat32, {"T"}),
                       "op: x must be float32 [T], got nothing", std::invalid_argument);
  check.expect("x", TensorView::dense(nullptr, DType::kFloat32, {0}), DType::kFloat32,
               {"T"});  // no elements, no memory
  CHECK(check.size("T") == 0);
}

TEST_CASE("rows may lie apart, but each must be dense") {
  std::array<float, 64> memory{};
  ShapeCheck check("op");
  TensorView view = TensorView::dense(memory.data(), DType::kFloat32, {2, 3, 4});
  view.strides[0] = 20;
  check.expect("x", view, DType::kFloat32, {"A", "B", "C"});
  view.strides[1] = 5;
  CHECK_THROWS_WITH_AS(check.expect("x", view, DType::kFloat32, {"A", "B", "C"}), "op: x must have contiguous rows",
                       std::invalid_argument);
  check.expect_kv_cache("x", view, {"A", "B", "C"});
  view.strides[2] = 2;
  CHECK_THROWS_WITH_AS(check.expect_kv_cache("x", view, {"A", "B", "C"}),
                       "op: x must be contiguous along its last axis", std::invalid_argument);
}

TEST_CASE("a size outside its bounds is named with them") {
  ShapeCheck check("op");
  check.bind("D", 300);
  check.expect_size("D", 16, 300);
  CHECK_THROWS_WITH_AS(check.expect_size("D", 16, 256), "op: D must be in 16..256, got 300", std::invalid_argument);
}

}  // namespace
}  // namespace fastpaged
