// PackedLinear: the weight of a linear layer in the layout one op table's kernel reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "fastpaged/base/tensor_view.h"

namespace fastpaged {

// Of a weight's first byte.
constexpr std::size_t kPackedAlignment = 64;

class PackedLinear {
 public:
  // Owns num_bytes (> 0) of page-aligned, zeroed memory. dtype: of the elements, and so of the activations it takes,
  // bfloat16 or float32. isa: name of the op table that packed it; must live on. gated: the first half of its outputs
  // are gates, the second the ups they belong to, laid out so that the two meet.
  PackedLinear(std::int64_t out_features, std::int64_t in_features, DType dtype, std::size_t num_bytes, const char* isa,
               bool gated = false);

  // What was packed before, in the layout of `isa`, and lies elsewhere: num_bytes at data, aligned to kPackedAlignment,
  // which are only read, and are kept for as long as this lives.
  PackedLinear(std::int64_t out_features, std::int64_t in_features, DType dtype, std::size_t num_bytes, const char* isa,
               bool gated, std::shared_ptr<const std::byte> data);

  [[nodiscard]] std::int64_t out_features() const { return out_features_; }
  [[nodiscard]] std::int64_t in_features() const { return in_features_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] std::size_t num_bytes() const { return num_bytes_; }
  [[nodiscard]] const char* isa() const { return isa_; }
  [[nodiscard]] bool gated() const { return gated_; }
  // To pack into. Throws InvariantError for what lies elsewhere.
  [[nodiscard]] std::byte* data();
  [[nodiscard]] const std::byte* data() const { return data_.get(); }

 private:
  std::int64_t out_features_;
  std::int64_t in_features_;
  DType dtype_;
  std::size_t num_bytes_;
  const char* isa_;
  bool gated_;
  bool own_ = false;  // to pack into
  std::shared_ptr<const std::byte> data_;
};

}  // namespace fastpaged
