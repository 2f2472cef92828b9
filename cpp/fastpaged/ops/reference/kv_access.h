// K and V of a cache one vector and one number at a time, whatever it keeps them as: elements of A, or 8-bit codes.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "fastpaged/ops/element.h"
#include "fastpaged/ops/kv_codes.h"
#include "fastpaged/ops/kv_layout.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::reference {

template <typename A>
class ElementAccess : public KVLayout<A> {
 public:
  using KVLayout<A>::KVLayout;

  void write_key(std::int64_t block, std::int64_t head, std::int64_t slot, const float* key) const {
    for (std::int64_t d = 0; d < this->head_dim(); ++d) {
      this->keys(block, head)[this->key_element(slot, d)] = rounded_to<A>(key[d]);
    }
  }
  void write_value(std::int64_t block, std::int64_t head, std::int64_t slot, const float* value) const {
    for (std::int64_t d = 0; d < this->head_dim(); ++d) {
      this->values(block, head)[this->value_element(slot, d)] = rounded_to<A>(value[d]);
    }
  }
  [[nodiscard]] float key(std::int64_t block, std::int64_t head, std::int64_t slot, std::int64_t d) const {
    return to_float(this->keys(block, head)[this->key_element(slot, d)]);
  }
  [[nodiscard]] float value(std::int64_t block, std::int64_t head, std::int64_t slot, std::int64_t d) const {
    return to_float(this->values(block, head)[this->value_element(slot, d)]);
  }
};

template <typename A>
class CodeAccess : public KVCodeLayout<A> {
 public:
  explicit CodeAccess(const TensorView& kv_cache)
      : KVCodeLayout<A>(kv_cache), values_of_codes_(values_of_codes(kv_cache.dtype)) {}

  void write_key(std::int64_t block, std::int64_t head, std::int64_t slot, const float* key) const {
    std::array<std::uint8_t, kMaxHeadDim> codes{};
    std::uint8_t* const piece = this->keys(block, head);
    write_scale(piece, slot, quantize(this->dtype(), key, this->head_dim(), codes.data()));
    for (std::int64_t d = 0; d < this->head_dim(); ++d) {
      piece[this->key_code(slot, d)] = codes[d];
    }
  }
  void write_value(std::int64_t block, std::int64_t head, std::int64_t slot, const float* value) const {
    std::array<std::uint8_t, kMaxHeadDim> codes{};
    std::uint8_t* const piece = this->values(block, head);
    write_scale(piece, slot, quantize(this->dtype(), value, this->head_dim(), codes.data()));
    for (std::int64_t d = 0; d < this->head_dim(); ++d) {
      piece[this->value_code(slot, d)] = codes[d];
    }
  }
  [[nodiscard]] float key(std::int64_t block, std::int64_t head, std::int64_t slot, std::int64_t d) const {
    const std::uint8_t* const piece = this->keys(block, head);
    return worth(piece[this->key_code(slot, d)], piece + this->scale(slot));
  }
  [[nodiscard]] float value(std::int64_t block, std::int64_t head, std::int64_t slot, std::int64_t d) const {
    const std::uint8_t* const piece = this->values(block, head);
    return worth(piece[this->value_code(slot, d)], piece + this->scale(slot));
  }

 private:
  void write_scale(std::uint8_t* piece, std::int64_t slot, float scale) const {
    std::memcpy(piece + this->scale(slot), &scale, sizeof(scale));
  }
  [[nodiscard]] float worth(std::uint8_t code, const std::uint8_t* scale_bytes) const {
    float scale;
    std::memcpy(&scale, scale_bytes, sizeof(scale));
    return to_float(rounded_to<A>(values_of_codes_[code] * scale));
  }

  const std::array<float, 256>& values_of_codes_;
};

// fn(access) of the cache, for the activation dtype of the op.
template <typename Fn>
void with_kv_access(const TensorView& kv_cache, DType activation_dtype, const Fn& fn) {
  with_element(activation_dtype, [&](auto element) {
    using A = decltype(element);
    if (is_kv_code(kv_cache.dtype)) {
      fn(CodeAccess<A>(kv_cache), element);
    } else {
      fn(ElementAccess<A>(kv_cache), element);
    }
  });
}

}  // namespace fastpaged::reference
