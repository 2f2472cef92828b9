#include "fastpaged/ops/weight_rows.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "fastpaged/base/check.h"
#include "fastpaged/ops/element.h"
#include "fastpaged/ops/shape_check.h"

namespace fastpaged {
namespace {

// Layouts pad N and K with zeros, neither by more than to a multiple of this.
constexpr std::int64_t kLargestPadding = 64;

// What an int64 can count in bytes: 2^62 elements of 2 bytes, 2^61 of 4.
int log2_of_max_elements(DType dtype) {
  return dtype == DType::kBFloat16 ? 62 : 61;
}

std::int64_t padded(std::int64_t size) {
  return (size + kLargestPadding - 1) / kLargestPadding * kLargestPadding;
}

}  // namespace

WeightRows::WeightRows(std::span<const TensorView> parts, DType dtype, bool gated) : parts_(parts), starts_{0} {
  require(dtype == DType::kBFloat16 || dtype == DType::kFloat32,
          [&] { return "pack_linear: dtype must be bfloat16 or float32, got " + std::string(name_of(dtype)); });
  const int log2_limit = log2_of_max_elements(dtype);
  require(!parts.empty(), [] { return "pack_linear: parts must not be empty"; });
  for (std::size_t i = 0; i < parts.size(); ++i) {
    // Only K must agree, so N is a name of its own in each part.
    ShapeCheck part("pack_linear");
    if (i > 0) {
      part.bind("K", row_size_);
    }
    const std::string field = "parts[" + std::to_string(i) + "]";
    part.expect_activation(field.c_str(), parts[i], {"N", "K"});
    part.expect_size("N", 1, std::int64_t{1} << 40);
    part.expect_size("K", 1, std::int64_t{1} << 40);
    row_size_ = part.size("K");
    starts_.push_back(starts_.back() + part.size("N"));
    if (padded(num_rows()) > ((std::int64_t{1} << log2_limit) - 1) / padded(row_size_)) {
      part.fail("parts must have fewer than 2^" + std::to_string(log2_limit) +
                " elements in all, padding included, got N=" + std::to_string(num_rows()) + " up to " + field +
                " and K=" + std::to_string(row_size_));
    }
  }
  require(!gated || num_rows() % 2 == 0, [&] {
    return "pack_gated_linear: parts must have as many gates as ups, an even number of rows in all, got " +
           std::to_string(num_rows());
  });
}

template <typename A>
const A* WeightRows::row(std::int64_t n, A* scratch) const {
  const auto next = std::upper_bound(starts_.begin(), starts_.end(), n);
  const auto part = static_cast<std::size_t>(next - starts_.begin()) - 1;
  const std::int64_t i = n - starts_[part];
  return with_element(parts_[part].dtype, [&](auto element) -> const A* {
    using From = decltype(element);
    const auto* from = parts_[part].row<const From>(i);
    if constexpr (std::is_same_v<From, A>) {
      return from;
    } else {
      std::transform(from, from + row_size_, scratch, [](From x) { return rounded_to<A>(to_float(x)); });
      return scratch;
    }
  });
}

template const BFloat16* WeightRows::row(std::int64_t n, BFloat16* scratch) const;
template const float* WeightRows::row(std::int64_t n, float* scratch) const;

}  // namespace fastpaged
