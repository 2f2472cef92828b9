#include "fastpaged/ops/packed_linear.h"

#include <utility>

#include "fastpaged/base/check.h"
#include "fastpaged/ops/weight_memory.h"

namespace fastpaged {

PackedLinear::PackedLinear(std::int64_t out_features, std::int64_t in_features, DType dtype, std::size_t num_bytes,
                           const char* isa, bool gated)
    : out_features_(out_features),
      in_features_(in_features),
      dtype_(dtype),
      num_bytes_(num_bytes),
      isa_(isa),
      gated_(gated),
      own_(true),
      data_(weight_memory(num_bytes)) {}

PackedLinear::PackedLinear(std::int64_t out_features, std::int64_t in_features, DType dtype, std::size_t num_bytes,
                           const char* isa, bool gated, std::shared_ptr<const std::byte> data)
    : out_features_(out_features),
      in_features_(in_features),
      dtype_(dtype),
      num_bytes_(num_bytes),
      isa_(isa),
      gated_(gated),
      data_(std::move(data)) {}

std::byte* PackedLinear::data() {
  invariant(own_, "PackedLinear: the weight is not this object's own, and is only read");
  return const_cast<std::byte*>(data_.get());
}

}  // namespace fastpaged
