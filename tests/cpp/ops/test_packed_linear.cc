#include <array>
#include <cstddef>
#include <memory>
#include <utility>

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

}  // namespace
}  // namespace fastpaged
