// KV memory of 8-bit codes, for tests: filled with ones, which are scales of NaN.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "fastpaged/ops/kv_codes.h"
#include "fastpaged/ops/kv_layout.h"

namespace fastpaged {

constexpr DType kCodeDTypes[] = {DType::kFp8E4M3, DType::kFp8E5M2, DType::kInt8};

class CodeMemory {
 public:
  CodeMemory(DType dtype, std::int64_t num_blocks, std::int64_t num_kv_heads, std::int64_t block_size,
             std::int64_t head_dim)
      : piece_bytes_(block_size * (head_dim + kKVScaleBytes)),
        words_(static_cast<std::size_t>(num_blocks * 2 * num_kv_heads * piece_bytes_ / kKVScaleBytes), 0xFFFFFFFFU),
        view_(kv_code_view(
            "memory", TensorView::dense(words_.data(), dtype, {num_blocks, 2, num_kv_heads, piece_bytes_}), head_dim)) {
  }

  CodeMemory(const CodeMemory&) = delete;
  CodeMemory& operator=(const CodeMemory&) = delete;
  ~CodeMemory() = default;

  [[nodiscard]] const TensorView& view() const { return view_; }
  [[nodiscard]] std::vector<std::uint8_t> bytes() const {
    std::vector<std::uint8_t> bytes(words_.size() * sizeof(words_[0]));
    std::memcpy(bytes.data(), words_.data(), bytes.size());
    return bytes;
  }

 private:
  std::int64_t piece_bytes_;
  std::vector<std::uint32_t> words_;  // aligned to scales
  TensorView view_;
};

}  // namespace fastpaged
