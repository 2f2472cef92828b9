#include "fastpaged/ops/weight_rows.h"

#include <algorithm>
#include <string>

#include "fastpaged/base/check.h"
#include "fastpaged/ops/bfloat16.h"
#include "fastpaged/ops/shape_check.h"

namespace fastpaged {
namespace {

// Layouts pad N and K with zeros, neither by more than to a multiple of this.
constexpr std::int64_t kLargestPadding = 64;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 62;  // 2 bytes each: what an int64 can count

std::int64_t padded(std::int64_t size) {
  return (size + kLargestPadding - 1) / kLargestPadding * kLargestPadding;
}

}  // namespace

WeightRows::WeightRows(std::span<const TensorView> parts) : parts_(parts), starts_{0} {
  require(!parts.empty(), [] { return "pack_linear: parts must not be empty"; });
  for (std::size_t i = 0; i < parts.size(); ++i) {
    // Only K must agree, so N is a name of its own in each part.
    ShapeCheck part("pack_linear");
    if (i > 0) {
      part.bind("K", row_size_);
    }
    const std::string field = "parts[" + std::to_string(i) + "]";
    const DType dtype = parts[i].dtype == DType::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
    part.expect(field.c_str(), parts[i], dtype, {"N", "K"});
    part.expect_size("N", 1, std::int64_t{1} << 40);
    part.expect_size("K", 1, std::int64_t{1} << 40);
    row_size_ = part.size("K");
    starts_.push_back(starts_.back() + part.size("N"));
    if (padded(num_rows()) > (kMaxElements - 1) / padded(row_size_)) {
      part.fail("parts must have fewer than 2^62 elements in all, padding included, got N=" +
                std::to_string(num_rows()) + " up to " + field + " and K=" + std::to_string(row_size_));
    }
  }
}

const BFloat16* WeightRows::row(std::int64_t n, BFloat16* scratch) const {
  const auto next = std::upper_bound(starts_.begin(), starts_.end(), n);
  const auto part = static_cast<std::size_t>(next - starts_.begin()) - 1;
  const std::int64_t i = n - starts_[part];
  if (parts_[part].dtype == DType::kBFloat16) {
    return parts_[part].row<const BFloat16>(i);
  }
  const auto* floats = parts_[part].row<const float>(i);
  std::transform(floats, floats + row_size_, scratch, to_bfloat16);
  return scratch;
}

}  // namespace fastpaged
