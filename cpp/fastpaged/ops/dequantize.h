// GGUF's block formats, turned into plain numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "fastpaged/base/tensor_view.h"
#include "fastpaged/base/thread_pool.h"

namespace fastpaged {

enum class GgufKind : std::uint8_t { kF32, kF16, kBF16, kQ80, kQ40, kQ41, kQ50, kQ51, kQ4K, kQ5K, kQ6K };

// GGUF's own names ("Q4_1"). Throws std::invalid_argument naming what is allowed.
GgufKind gguf_kind_from_name(std::string_view name);

// out: float32 or bfloat16, dense, of any shape; what a block stands for is computed in float32 (multiply, then add)
// and rounded to the nearest bfloat16, ties to even.
// Throws std::invalid_argument unless data holds exactly out's elements.
void dequantize(GgufKind kind, std::span<const std::byte> data, const TensorView& out, ThreadPool& pool);

}  // namespace fastpaged
