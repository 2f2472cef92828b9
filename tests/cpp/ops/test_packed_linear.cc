#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "doctest/doctest.h"
#include "fastpaged/base/check.h"
#include "fastpaged/ops/packed_linear.h"

namespace fastpaged {
namespace {

TEST_CASE("what was packed elsewhere is read where it lies, and let go with its last user") {
  const auto bytes = std::make_shared<std::array<std::byte, 64>>();
  (*bytes)[63] = std::byte{7};
  {
    PackedLinear weight(4, 8, DType::kBFloat16, bytes->size(), "isa", /*gated=*/true, {bytes, bytes->data()});
    CHECK(bytes.use_count() == 2);
    PackedLinear moved = std::move(weight);
    CHECK(bytes.use_count() == 2);
    CHECK(std::as_const(moved).data() == bytes->data());
    CHECK(moved.gated());
    CHECK_THROWS_AS(static_cast<void>(moved.data()), InvariantError);
  }
  CHECK(bytes.use_count() == 1);
}

TEST_CASE("memory to pack into is zeroed and writable") {
  PackedLinear weight(4, 8, DType::kFloat32, 4 * 8 * 4, "isa");
  for (std::size_t i = 0; i < weight.num_bytes(); ++i) {
    CHECK(weight.data()[i] == std::byte{0});
    weight.data()[i] = std::byte{1};
  }
  CHECK(std::as_const(weight).data() == weight.data());
}

TEST_CASE("weights side by side begin with a page, overlap nowhere, and outlive each other") {
  constexpr std::size_t kSizes[] = {1, 4096, 5000, std::size_t{3} << 20, std::size_t{40} << 20, 100};
  std::vector<PackedLinear> weights;
  for (const std::size_t size : kSizes) {
    weights.emplace_back(1, 1, DType::kFloat32, size, "isa");
    CHECK(reinterpret_cast<std::uintptr_t>(weights.back().data()) % 4096 == 0);
    std::fill_n(weights.back().data(), size, static_cast<std::byte>(weights.size()));
  }
  weights.erase(weights.begin() + 1);
  for (const PackedLinear& weight : weights) {
    const std::byte value = weight.data()[0];
    CHECK(std::all_of(weight.data(), weight.data() + weight.num_bytes(), [=](std::byte b) { return b == value; }));
  }
  CHECK(weights.back().data()[0] == std::byte{6});
}

TEST_CASE("a slab is full at last, and the next one is zeroed too") {
  std::vector<PackedLinear> weights;
  for (int i = 0; i < 40; ++i) {
    weights.emplace_back(1, 1, DType::kFloat32, std::size_t{5} << 20, "isa");
    std::byte* const last = weights.back().data() + weights.back().num_bytes() - 1;
    CHECK(weights.back().data()[0] == std::byte{0});
    CHECK(*last == std::byte{0});
    *last = std::byte{1};
  }
}

}  // namespace
}  // namespace fastpaged
