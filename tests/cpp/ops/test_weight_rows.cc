#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "fastpaged/ops/op_table.h"
#include "fastpaged/ops/weight_rows.h"

namespace fastpaged {
namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 40;

// As large as one likes: every row is the same memory, and none of it is read here.
TensorView repeated_row(std::int64_t num_rows, std::int64_t row_size) {
  static BFloat16 element{};
  TensorView view = TensorView::dense(&element, DType::kBFloat16, {1, row_size});
  view.shape[0] = num_rows;
  view.strides[0] = 0;
  return view;
}

std::string error_of(const std::vector<TensorView>& parts, DType dtype = DType::kBFloat16) {
  try {
    const WeightRows rows(parts, dtype);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("parts whose size in bytes would overflow are refused, with both sizes") {
  const std::int64_t size = std::int64_t{1} << 21;
  CHECK(error_of({repeated_row(kHuge, size)}).empty());  // 2^61 elements
  CHECK(error_of({repeated_row(kHuge, size), repeated_row(kHuge, size)}) ==
        "pack_linear: parts must have fewer than 2^62 elements in all, padding included, got N=2199023255552 up to "
        "parts[1] and K=2097152");
  CHECK(error_of({repeated_row(kHuge, kHuge)}).find("got N=1099511627776 up to parts[0] and K=1099511627776") !=
        std::string::npos);
  // 4 of 2^61 elements and a row: 2^64 bytes and some, which would look like a few.
  const TensorView part = repeated_row(kHuge, size);
  CHECK(error_of({part, part, part, part, repeated_row(1, size)}).find("parts[1]") != std::string::npos);
}

TEST_CASE("elements of four bytes reach the limit with half as many") {
  const std::int64_t size = std::int64_t{1} << 20;
  CHECK(error_of({repeated_row(kHuge, size)}, DType::kFloat32).empty());  // 2^60 elements
  CHECK(error_of({repeated_row(kHuge, size), repeated_row(kHuge, size)}, DType::kFloat32) ==
        "pack_linear: parts must have fewer than 2^61 elements in all, padding included, got N=2199023255552 up to "
        "parts[1] and K=1048576");
}

TEST_CASE("rows are served in either dtype: as they lie, rounded, or widened") {
  std::array<float, 3> floats = {1.0F, 1.00390625F, -3.0F};  // the second lies between two bfloat16, and goes to even
  std::array<BFloat16, 3> halves = {BFloat16{0x3F80}, BFloat16{0x4000}, BFloat16{0x7FC0}};
  const std::vector<TensorView> parts = {TensorView::dense(floats.data(), DType::kFloat32, {1, 3}),
                                         TensorView::dense(halves.data(), DType::kBFloat16, {1, 3})};
  std::array<float, 3> wide{};
  const WeightRows as_floats(parts, DType::kFloat32);
  CHECK(as_floats.row(0, wide.data()) == floats.data());
  const float* widened = as_floats.row(1, wide.data());
  CHECK(widened[0] == 1.0F);
  CHECK(widened[1] == 2.0F);
  CHECK(std::isnan(widened[2]));

  std::array<BFloat16, 3> narrow{};
  const WeightRows as_bfloat16(parts, DType::kBFloat16);
  CHECK(as_bfloat16.row(1, narrow.data()) == halves.data());
  const BFloat16* rounded = as_bfloat16.row(0, narrow.data());
  CHECK(rounded[0].bits == 0x3F80);
  CHECK(rounded[1].bits == 0x3F80);
  CHECK(rounded[2].bits == 0xC040);
}

TEST_CASE("weights are packed as bfloat16 or float32 and as nothing else") {
  CHECK(error_of({repeated_row(1, 1)}, DType::kInt32) == "pack_linear: dtype must be bfloat16 or float32, got int32");
}

TEST_CASE("sizes that only padding would take over the limit are refused too") {
  CHECK(error_of({repeated_row(kHuge, (std::int64_t{1} << 22) - 64)}).empty());
  CHECK_FALSE(error_of({repeated_row(kHuge, (std::int64_t{1} << 22) - 63)}).empty());
  CHECK_FALSE(error_of({repeated_row((std::int64_t{1} << 22) - 63, kHuge)}).empty());
}

TEST_CASE("every op table refuses to pack what it cannot count") {
  ThreadPool pool(1);
  const TensorView part = repeated_row(kHuge, std::int64_t{1} << 21);
  const std::vector<TensorView> parts = {part, part, part, part, repeated_row(1, std::int64_t{1} << 21)};
  for (const std::string& isa : supported_isas()) {
    CHECK_THROWS_AS(op_table(isa).pack_linear(parts, DType::kBFloat16, pool), std::invalid_argument);
  }
}

}  // namespace
}  // namespace fastpaged
