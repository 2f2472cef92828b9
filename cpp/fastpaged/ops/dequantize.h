// GGUF's block formats, turned into plain numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "fastpaged/base/tensor_view.h"
#include "fastpaged/base/thread_pool.h"

namespace fastpaged {

enum class GgufKind : std::uint8_t { kQ41, kQ80, kF16, kF32, kBF16 };

// GGUF's own names ("Q4_1"). Throws std::invalid_argument naming what is allowed.
GgufKind gguf_kind_from_name(std::string_view name);

// out: float32 or bfloat16, dense, of any shape; what a block stands for is computed in float32 (multiply, then add)
// and rounded to the nearest bfloat16, ties to even.
// Throws std::invalid_argument unless data holds exactly out's elements.
void dequantize(GgufKind kind, std::span<const std::byte> data, const TensorView& out, ThreadPool& pool);

}  // namespace fastpaged
