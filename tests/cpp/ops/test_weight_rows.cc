#include <doctest/doctest.h>

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

std::string error_of(const std::vector<TensorView>& parts) {
  try {
    const WeightRows rows(parts);
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
    CHECK_THROWS_AS(op_table(isa).pack_linear(parts, pool), std::invalid_argument);
  }
}

}  // namespace
}  // namespace fastpaged
