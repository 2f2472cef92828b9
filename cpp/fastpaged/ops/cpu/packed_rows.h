// Packed rows: some rows of the input of a linear layer, laid out as its inner loop reads them, one stream of words of
// 32 bits. Rows in their own memory may lie a power of two apart, where they push each other out of the cache.
//
//   [blocks of up to kMaxRows rows][depth][rows of the block]
//
// A word is a pair of bfloat16 where there is an instruction for their dot product (kHasDot), else a float32: bfloat16
// is widened here, once for all outputs. An odd last bfloat16 is followed by a zero.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "fastpaged/base/tensor_view.h"
#include "fastpaged/ops/cpu/row_scratch.h"
#include "fastpaged/ops/cpu/vector.h"
#include "fastpaged/ops/cpu/weight_panels.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {
namespace {

template <typename A>
constexpr bool kWordIsPair = kHasDot && std::is_same_v<A, BFloat16>;
template <typename A>
constexpr std::int64_t kElementsPerWord = kWordIsPair<A> ? 2 : 1;

// Words of a row.
template <typename A>
constexpr std::int64_t row_depth(std::int64_t in_features) {
  const std::int64_t whole_steps = (in_features + kDepthStep<A> - 1) / kDepthStep<A>;
  return whole_steps * kDepthStep<A> / kElementsPerWord<A>;
}

// num_rows cut into as few blocks as max_rows per block allow, of sizes that differ by one at most: no short rest.
class EvenSplit {
 public:
  constexpr EvenSplit(std::int64_t num_rows, std::int64_t max_rows)
      : count_((num_rows + max_rows - 1) / max_rows),
        least_(count_ == 0 ? 0 : num_rows / count_),
        longer_(count_ == 0 ? 0 : num_rows % count_) {}
  [[nodiscard]] constexpr std::int64_t count() const { return count_; }
  [[nodiscard]] constexpr std::int64_t begin(std::int64_t i) const { return i * least_ + std::min(i, longer_); }
  [[nodiscard]] constexpr std::int64_t size(std::int64_t i) const { return least_ + (i < longer_ ? 1 : 0); }
  [[nodiscard]] constexpr std::int64_t max_size() const { return least_ + (longer_ > 0 ? 1 : 0); }

 private:
  std::int64_t count_;
  std::int64_t least_;
  std::int64_t longer_;
};

}  // namespace

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)

// kLanes words of a row from word `at` on; zero from element in_features on.
static inline Floats load_words(const float* row, std::int64_t at, std::int64_t in_features) {
  return load(row + at, in_features - at);
}
static inline Floats load_words(const BFloat16* row, std::int64_t at, std::int64_t in_features) {
  if constexpr (kHasDot) {
    const std::int64_t count = in_features - 2 * at;
    float words[kLanes] = {};
    if (count >= 2 * kLanes) {
      return load(reinterpret_cast<const float*>(row) + at);
    }
    std::memcpy(words, row + 2 * at, static_cast<std::size_t>(std::max<std::int64_t>(count, 0)) * sizeof(BFloat16));
    return load(words);
  } else {
    return load(row + at, in_features - at);
  }
}

// `rows` rows from x on, as one block.
template <typename A>
static void pack_block(const A* x, std::int64_t x_stride, std::int64_t rows, std::int64_t in_features, float* to) {
  const std::int64_t depth = row_depth<A>(in_features);
  if (rows == 1) {
    for (std::int64_t at = 0; at < depth; at += kLanes) {
      store(to + at, load_words(x, at, in_features), depth - at);
    }
    return;
  }
  for (std::int64_t first = 0; first < rows; first += kLanes) {
    const std::int64_t count = std::min(kLanes, rows - first);
    for (std::int64_t at = 0; at < depth; at += kLanes) {
      Floats square[kLanes];
      for (std::int64_t r = 0; r < kLanes; ++r) {
        square[r] = r < count ? load_words(x + (first + r) * x_stride, at, in_features) : zero();
      }
      transpose(square);
      const std::int64_t words = std::min(kLanes, depth - at);
      for (std::int64_t w = 0; w < words; ++w) {
        store(to + (at + w) * rows + first, square[w], count);
      }
    }
  }
}

FASTPAGED_END_TARGET

// `blocks` of rows of x from first_row on, in the scratch of this thread. call: of RowScratch.
template <typename A>
static const float* packed_rows(const TensorView& x, std::int64_t first_row, const EvenSplit& blocks,
                                std::uint64_t call) {
  const std::int64_t in_features = x.shape[1];
  const std::int64_t depth = row_depth<A>(in_features);
  const std::int64_t num_bytes = blocks.begin(blocks.count()) * depth * static_cast<std::int64_t>(sizeof(float));
  return static_cast<const float*>(RowScratch::of_this_thread().get(call, first_row, num_bytes, [&](void* memory) {
    for (std::int64_t i = 0; i < blocks.count(); ++i) {
      pack_block(x.row<const A>(first_row + blocks.begin(i)), x.strides[0], blocks.size(i), in_features,
                 static_cast<float*>(memory) + blocks.begin(i) * depth);
    }
  }));
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
