// PackedLinear: the weight of a linear layer in the layout one op table's kernel reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "fastpaged/base/tensor_view.h"

namespace fastpaged {

class PackedLinear {
 public:
  // Owns num_bytes (> 0) of page-aligned, zeroed memory. dtype: of the elements, and so of the activations it takes,
  // bfloat16 or float32. isa: name of the op table that packed it; must live on. gated: the first half of its outputs
  // are gates, the second the ups they belong to, laid out so that the two meet.
  PackedLinear(std::int64_t out_features, std::int64_t in_features, DType dtype, std::size_t num_bytes, const char* isa,
               bool gated = false);

  [[nodiscard]] std::int64_t out_features() const { return out_features_; }
  [[nodiscard]] std::int64_t in_features() const { return in_features_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] std::size_t num_bytes() const { return num_bytes_; }
  [[nodiscard]] const char* isa() const { return isa_; }
  [[nodiscard]] bool gated() const { return gated_; }
  [[nodiscard]] std::byte* data() { return data_.get(); }
  [[nodiscard]] const std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    std::size_t num_bytes;
    void operator()(std::byte* data) const;
  };
  std::int64_t out_features_;
  std::int64_t in_features_;
  DType dtype_;
  std::size_t num_bytes_;
  const char* isa_;
  bool gated_;
  std::unique_ptr<std::byte[], Free> data_;
};

}  // namespace fastpaged
