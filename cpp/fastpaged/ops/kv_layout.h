// Where the elements of one layer lie in paged KV memory [num_blocks, 2 (K|V), Hkv, block_size, D].
//
// A piece is the K or the V of one block and KV head: block_size * D elements in a row. Where the block size is a
// multiple of kKeyTile, their order (KVOrder) is the one in which they are multiplied; a tile is kKeyTile neighbouring
// slots:
//
//            K                                        V
//   BFloat16 [tile][D / 2][kKeyTile][2 of D]          [block_size / 2][D][2 slots]
//   float    [tile][D][kKeyTile]                      [block_size][D]
//
// A tile of K or V is kKeyTile * D neighbouring elements either way. With other block sizes both are [block_size][D].
// The order is a property of dtype and block size, the same for all op tables. Copies move whole blocks and need not
// know it.
//
// Elements are of the activation dtype A, BFloat16 or float (KVLayout), or one-byte codes (KVCodeLayout; kv_codes.h
// says what they are worth): in the order of A, and with each tile, or with the whole piece where there are no tiles,
// followed by the float32 scales of its slots. So a slot takes D + 4 bytes, and a tile is neighbouring bytes.
#pragma once

#include <cstdint>
#include <type_traits>

#include "fastpaged/base/tensor_view.h"

namespace fastpaged {

constexpr std::int64_t kKeyTile = 16;
constexpr std::int64_t kKVScaleBytes = 4;  // of a slot's scale, beside its D codes

template <typename A>
class KVOrder {
 public:
  static constexpr bool kInPairs = std::is_same_v<A, BFloat16>;

  explicit KVOrder(const TensorView& kv_cache)
      : num_kv_heads_(kv_cache.shape[2]),
        block_size_(kv_cache.shape[3]),
        head_dim_(kv_cache.shape[4]),
        is_tiled_(block_size_ % kKeyTile == 0) {}

  [[nodiscard]] std::int64_t num_kv_heads() const { return num_kv_heads_; }
  [[nodiscard]] std::int64_t block_size() const { return block_size_; }
  [[nodiscard]] std::int64_t head_dim() const { return head_dim_; }
  [[nodiscard]] bool is_tiled() const { return is_tiled_; }

  // Where element d of the key or value at a slot of the block lies among the elements of its piece.
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
  std::int64_t num_kv_heads_;
  std::int64_t block_size_;
  std::int64_t head_dim_;
  bool is_tiled_;
};

template <typename A>
class KVLayout : public KVOrder<A> {
 public:
  // REQUIRES: valid (validate.h): pieces without gaps.
  explicit KVLayout(const TensorView& kv_cache)
      : KVOrder<A>(kv_cache),
        data_(kv_cache.ptr<A>()),
        block_stride_(kv_cache.strides[0]),
        value_offset_(kv_cache.strides[1]),
        head_stride_(kv_cache.strides[2]) {}

  // The pieces of a block and KV head.
  [[nodiscard]] A* keys(std::int64_t block, std::int64_t head) const {
    return data_ + block * block_stride_ + head * head_stride_;
  }
  [[nodiscard]] A* values(std::int64_t block, std::int64_t head) const { return keys(block, head) + value_offset_; }

 private:
  A* data_;
  std::int64_t block_stride_;
  std::int64_t value_offset_;  // from a key to its value
  std::int64_t head_stride_;
};

// A run is what the scales follow: the kKeyTile slots of a tile; all of the block's where it is not tiled.
template <typename A>
class KVCodeLayout : public KVOrder<A> {
 public:
  // REQUIRES: valid: pieces without gaps, aligned to a scale.
  explicit KVCodeLayout(const TensorView& kv_cache)
      : KVOrder<A>(kv_cache),
        bytes_(kv_cache.ptr<std::uint8_t>()),
        dtype_(kv_cache.dtype),
        block_stride_(kv_cache.strides[0]),
        value_offset_(kv_cache.strides[1]),
        head_stride_(kv_cache.strides[2]),
        run_slots_(this->is_tiled() ? kKeyTile : this->block_size()) {}

  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] std::int64_t run_slots() const { return run_slots_; }
  [[nodiscard]] std::int64_t run_codes() const { return run_slots_ * this->head_dim(); }
  [[nodiscard]] std::int64_t run_bytes() const { return run_codes() + run_slots_ * kKVScaleBytes; }

  // The pieces of a block and KV head: runs of codes and scales.
  [[nodiscard]] std::uint8_t* keys(std::int64_t block, std::int64_t head) const {
    return bytes_ + block * block_stride_ + head * head_stride_;
  }
  [[nodiscard]] std::uint8_t* values(std::int64_t block, std::int64_t head) const {
    return keys(block, head) + value_offset_;
  }

  // Where in a piece they lie: the code of element d of a key or value, and its slot's scale.
  [[nodiscard]] std::int64_t key_code(std::int64_t slot, std::int64_t d) const {
    return byte_of(this->key_element(slot, d));
  }
  [[nodiscard]] std::int64_t value_code(std::int64_t slot, std::int64_t d) const {
    return byte_of(this->value_element(slot, d));
  }
  [[nodiscard]] std::int64_t scale(std::int64_t slot) const {
    return slot / run_slots_ * run_bytes() + run_codes() + slot % run_slots_ * kKVScaleBytes;
  }

 private:
  [[nodiscard]] std::int64_t byte_of(std::int64_t element) const {
    return element + element / run_codes() * run_slots_ * kKVScaleBytes;
  }

  std::uint8_t* bytes_;
  DType dtype_;
  std::int64_t block_stride_;
  std::int64_t value_offset_;  // from a key to its value
  std::int64_t head_stride_;
  std::int64_t run_slots_;
};

}  // namespace fastpaged
