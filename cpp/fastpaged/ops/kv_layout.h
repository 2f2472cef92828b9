// KVLayout: where the elements of one layer lie in paged KV memory [num_blocks, 2 (K|V), Hkv, block_size, D] of
// elements A: BFloat16 or float.
//
// A piece is the K or the V of one block and KV head: block_size * D elements in a row. Where the block size is a
// multiple of kKeyTile, their order is the one in which they are multiplied; a tile is kKeyTile neighbouring slots:
//
//            K                                        V
//   BFloat16 [tile][D / 2][kKeyTile][2 of D]          [block_size / 2][D][2 slots]
//   float    [tile][D][kKeyTile]                      [block_size][D]
//
// A tile of K or V is kKeyTile * D neighbouring elements either way. With other block sizes both are [block_size][D].
// The order is a property of dtype and block size, the same for all op tables. Copies move whole blocks and need not
// know it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "fastpaged/base/tensor_view.h"

namespace fastpaged {

constexpr std::int64_t kKeyTile = 16;

template <typename A>
class KVLayout {
 public:
  static constexpr bool kInPairs = std::is_same_v<A, BFloat16>;

  // REQUIRES: valid (validate.h): pieces without gaps.
  explicit KVLayout(const TensorView& kv_cache)
      : data_(kv_cache.ptr<A>()),
        num_kv_heads_(kv_cache.shape[2]),
        block_size_(kv_cache.shape[3]),
        head_dim_(kv_cache.shape[4]),
        block_stride_(kv_cache.strides[0]),
        value_offset_(kv_cache.strides[1]),
        head_stride_(kv_cache.strides[2]),
        is_tiled_(block_size_ % kKeyTile == 0) {}

  [[nodiscard]] std::int64_t num_kv_heads() const { return num_kv_heads_; }
  [[nodiscard]] std::int64_t block_size() const { return block_size_; }
  [[nodiscard]] std::int64_t head_dim() const { return head_dim_; }
  [[nodiscard]] bool is_tiled() const { return is_tiled_; }

  // The pieces of a block and KV head.
  [[nodiscard]] A* keys(std::int64_t block, std::int64_t head) const {
    return data_ + block * block_stride_ + head * head_stride_;
  }
  [[nodiscard]] A* values(std::int64_t block, std::int64_t head) const { return keys(block, head) + value_offset_; }

  // Where element d of the key or value at a slot of the block lies in its piece.
  [[nodiscard]] std::int64_t key_element(std::int64_t slot, std::int64_t d) const {
    if (!is_tiled_) {
      return slot * head_dim_ + d;
    }
    const std::int64_t tile = slot / kKeyTile * kKeyTile * head_dim_;
    const std::int64_t key = slot % kKeyTile;
    return tile + (kInPairs ? (d / 2 * kKeyTile + key) * 2 + d % 2 : d * kKeyTile + key);
  }
  [[nodiscard]] std::int64_t value_element(std::int64_t slot, std::int64_t d) const {
    return is_tiled_ && kInPairs ? (slot / 2 * head_dim_ + d) * 2 + slot % 2 : slot * head_dim_ + d;
  }

 private:
  A* data_;
  std::int64_t num_kv_heads_;
  std::int64_t block_size_;
  std::int64_t head_dim_;
  std::int64_t block_stride_;
  std::int64_t value_offset_;  // from a key to its value
  std::int64_t head_stride_;
  bool is_tiled_;
};

}  // namespace fastpaged
