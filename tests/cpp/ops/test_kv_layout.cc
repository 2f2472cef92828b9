// The order of elements in KV memory.
#include "fastpaged/ops/kv_layout.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "ops/kv_code_memory.h"
#include "ops/table_runs.h"

namespace fastpaged {
namespace {

template <typename A>
KVLayout<A> layout_of(std::vector<A>& memory, std::int64_t block_size, std::int64_t head_dim) {
  memory.resize(static_cast<std::size_t>(3 * 2 * 2 * block_size * head_dim));
  return KVLayout<A>(view_of(memory, {3, 2, 2, block_size, head_dim}));
}

TEST_CASE_TEMPLATE("every element of a piece has a place of its own, and those of a tile are neighbours", A, BFloat16,
                   float) {
  for (const std::int64_t block_size : {1, 3, 15, 16, 17, 32, 48, 256}) {
    for (const std::int64_t head_dim : {16, 64, 80, 256}) {
      CAPTURE(block_size);
      CAPTURE(head_dim);
      std::vector<A> memory;
      const KVLayout<A> layout = layout_of(memory, block_size, head_dim);
      CHECK((layout.is_tiled() == (block_size % 16 == 0)));
      std::vector<int> keys(static_cast<std::size_t>(block_size * head_dim));
      std::vector<int> values(keys.size());
      for (std::int64_t slot = 0; slot < block_size; ++slot) {
        for (std::int64_t d = 0; d < head_dim; ++d) {
          const std::int64_t key = layout.key_element(slot, d);
          const std::int64_t value = layout.value_element(slot, d);
          ++keys.at(static_cast<std::size_t>(key));
          ++values.at(static_cast<std::size_t>(value));
          if (layout.is_tiled()) {
            REQUIRE((key / (16 * head_dim) == slot / 16));
            REQUIRE((value / (16 * head_dim) == slot / 16));
          }
        }
      }
      CHECK((keys == std::vector<int>(keys.size(), 1)));
      CHECK((values == std::vector<int>(values.size(), 1)));
    }
  }
}

TEST_CASE("what is multiplied together lies together") {
  std::vector<BFloat16> pairs;
  const KVLayout<BFloat16> halves = layout_of(pairs, 32, 64);
  CHECK((halves.key_element(0, 1) == 1));   // the two elements of a pair,
  CHECK((halves.key_element(1, 0) == 2));   // that of the next key,
  CHECK((halves.key_element(0, 2) == 32));  // the next pair of all keys of the tile
  CHECK((halves.key_element(16, 0) == 16 * 64));
  CHECK((halves.value_element(1, 0) == 1));  // the two keys of a pair,
  CHECK((halves.value_element(0, 1) == 2));  // the next element of both
  CHECK((halves.value_element(2, 0) == 2 * 64));
  std::vector<float> whole;
  const KVLayout<float> floats = layout_of(whole, 32, 64);
  CHECK((floats.key_element(1, 0) == 1));
  CHECK((floats.key_element(0, 1) == 16));
  CHECK((floats.value_element(0, 1) == 1));
  CHECK((floats.value_element(1, 0) == 64));
}

TEST_CASE_TEMPLATE("codes and scales fill a piece, each with a place of its own, and a tile is neighbouring bytes", A,
                   BFloat16, float) {
  for (const std::int64_t block_size : {1, 5, 16, 48}) {
    for (const std::int64_t head_dim : {16, 80}) {
      CAPTURE(block_size);
      CAPTURE(head_dim);
      const CodeMemory memory(DType::kInt8, 2, 3, block_size, head_dim);
      const KVCodeLayout<A> layout(memory.view());
      const std::int64_t piece_bytes = block_size * (head_dim + 4);
      CHECK((layout.keys(0, 2) == layout.keys(0, 0) + 2 * piece_bytes));
      CHECK((layout.values(1, 0) == layout.keys(0, 0) + (2 + 1) * 3 * piece_bytes));
      std::vector<int> keys(static_cast<std::size_t>(piece_bytes));
      std::vector<int> values(keys.size());
      for (std::int64_t slot = 0; slot < block_size; ++slot) {
        const std::int64_t tile = layout.is_tiled() ? slot / 16 : 0;
        for (std::int64_t d = 0; d < head_dim; ++d) {
          ++keys.at(static_cast<std::size_t>(layout.key_code(slot, d)));
          ++values.at(static_cast<std::size_t>(layout.value_code(slot, d)));
          REQUIRE((layout.key_code(slot, d) / layout.run_bytes() == tile));
          REQUIRE((layout.value_code(slot, d) / layout.run_bytes() == tile));
        }
        REQUIRE((layout.scale(slot) % 4 == 0));
        REQUIRE((layout.scale(slot) / layout.run_bytes() == tile));
        for (std::int64_t byte = layout.scale(slot); byte < layout.scale(slot) + 4; ++byte) {
          ++keys.at(static_cast<std::size_t>(byte));
          ++values.at(static_cast<std::size_t>(byte));
        }
      }
      CHECK((keys == std::vector<int>(keys.size(), 1)));
      CHECK((values == std::vector<int>(values.size(), 1)));
    }
  }
}

TEST_CASE("pieces lie where the view's strides say") {
  std::vector<float> memory;
  const KVLayout<float> layout = layout_of(memory, 16, 32);
  CHECK((layout.keys(0, 0) == memory.data()));
  CHECK((layout.keys(0, 1) == memory.data() + 16 * 32));
  CHECK((layout.values(0, 0) == memory.data() + 2 * 16 * 32));
  CHECK((layout.keys(2, 0) == memory.data() + 2 * 4 * 16 * 32));
}

}  // namespace
}  // namespace fastpaged
