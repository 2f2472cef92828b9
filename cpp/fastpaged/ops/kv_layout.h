// KVLayout: where the vectors of one layer lie in paged KV memory [num_blocks, 2 (K|V), Hkv, block_size, D] of
// elements A: BFloat16 or float.
#pragma once

#include <cstdint>

#include "fastpaged/base/tensor_view.h"

namespace fastpaged {

template <typename A>
struct KVLayout {
  explicit KVLayout(const TensorView& kv_cache)
      : data(kv_cache.ptr<A>()),
        num_kv_heads(kv_cache.shape[2]),
        block_size(kv_cache.shape[3]),
        block_stride(kv_cache.strides[0]),
        value_offset(kv_cache.strides[1]),
        head_stride(kv_cache.strides[2]),
        token_stride(kv_cache.strides[3]) {}

  [[nodiscard]] A* key(std::int64_t block, std::int64_t head, std::int64_t offset) const {
    return data + block * block_stride + head * head_stride + offset * token_stride;
  }
  [[nodiscard]] A* value(std::int64_t block, std::int64_t head, std::int64_t offset) const {
    return key(block, head, offset) + value_offset;
  }

  A* data;
  std::int64_t num_kv_heads;
  std::int64_t block_size;
  std::int64_t block_stride;
  std::int64_t value_offset;  // from a key to its value
  std::int64_t head_stride;
  std::int64_t token_stride;
};

}  // namespace fastpaged
