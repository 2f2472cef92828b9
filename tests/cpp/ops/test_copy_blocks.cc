#include "fastpaged/ops/copy_blocks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <vector>

#include "random.h"

using fastpaged::BlockCopy;
using fastpaged::BlockMemory;
using fastpaged::copy_blocks;
using fastpaged::CopyKind;
using fastpaged::test::Random;

namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(Random& random, std::int64_t size) {
  Bytes bytes(static_cast<std::size_t>(size));
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(random.bits());
  }
  return bytes;
}

// Byte by byte, each copy through a memory of its own.
void copy_plainly(const BlockCopy& copy, std::int64_t block_bytes, Bytes& device, Bytes& host) {
  Bytes& from = copy.kind == CopyKind::kSwapIn ? host : device;
  Bytes& to = copy.kind == CopyKind::kSwapOut ? host : device;
  const Bytes before = from;
  for (std::int64_t i = 0; i < copy.num_blocks * block_bytes; ++i) {
    to.at(copy.destination * block_bytes + i) = before.at(copy.source * block_bytes + i);
  }
}

}  // namespace

TEST_CASE("copies are carried out one after the other, as byte by byte") {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::int32_t num_device = random.between(2, 9);
    const std::int32_t num_host = random.between(1, 9);
    const std::int64_t block_bytes = random.between(1, 70);
    Bytes device = random_bytes(random, num_device * block_bytes);
    Bytes host = random_bytes(random, num_host * block_bytes);
    Bytes plain_device = device;
    Bytes plain_host = host;
    std::vector<BlockCopy> copies;
    std::int64_t num_bytes = 0;
    for (int i = random.between(0, 8); i > 0; --i) {
      const auto kind = static_cast<CopyKind>(random.between(0, 2));
      const std::int32_t num_from = kind == CopyKind::kSwapIn ? num_host : num_device;
      const std::int32_t num_to = kind == CopyKind::kSwapOut ? num_host : num_device;
      BlockCopy copy = {kind, random.between(0, num_from - 1), random.between(0, num_to - 1), 0};
      std::int32_t longest = std::min(num_from - copy.source, num_to - copy.destination);
      if (kind == CopyKind::kCopyOnWrite) {
        longest = std::min(longest, std::max(copy.source - copy.destination, copy.destination - copy.source));
      }
      if (longest > 0) {
        copy.num_blocks = random.between(1, longest);
        copies.push_back(copy);
        num_bytes += copy.num_blocks * block_bytes;
        copy_plainly(copy, block_bytes, plain_device, plain_host);
      }
    }
    CHECK(copy_blocks(copies, block_bytes, {device.data(), num_device}, {host.data(), num_host}) == num_bytes);
    CHECK(device == plain_device);
    CHECK(host == plain_host);
  }
}

TEST_CASE("a copy outside the memories or over itself is refused before anything is copied") {
  Random random(1);
  Bytes device = random_bytes(random, 4 * 8);
  Bytes host = random_bytes(random, 2 * 8);
  const Bytes device_before = device;
  const Bytes host_before = host;
  const auto refused = [&](const BlockCopy& copy, const char* message) {
    const BlockCopy good = {CopyKind::kSwapOut, 0, 0, 1};
    CHECK_THROWS_WITH_AS(copy_blocks(std::vector{good, copy}, 8, {device.data(), 4}, {host.data(), 2}), message,
                         std::invalid_argument);
  };
  refused({CopyKind::kSwapOut, 3, 0, 2}, "copies: source must be blocks in [0, 4), got 2 from 3");
  refused({CopyKind::kSwapOut, 0, 1, 2}, "copies: destination must be blocks in [0, 2), got 2 from 1");
  refused({CopyKind::kSwapIn, 2, 0, 1}, "copies: source must be blocks in [0, 2), got 1 from 2");
  refused({CopyKind::kSwapIn, 0, -1, 1}, "copies: destination must be blocks in [0, 4), got 1 from -1");
  refused({CopyKind::kCopyOnWrite, 0, 1, 0}, "copies: source must be blocks in [0, 4), got 0 from 0");
  refused({CopyKind::kCopyOnWrite, 0, 2147483647, 2147483647},
          "copies: source must be blocks in [0, 4), got 2147483647 from 0");
  refused({CopyKind::kCopyOnWrite, 0, 1, 2},
          "copies: source and destination must not overlap, got 2 blocks from 0 to 1");
  refused({CopyKind::kCopyOnWrite, 2, 1, 2},
          "copies: source and destination must not overlap, got 2 blocks from 2 to 1");
  CHECK(device == device_before);
  CHECK(host == host_before);
}

TEST_CASE("a block has a size, and without a host nothing can be swapped") {
  Bytes device(8);
  CHECK_THROWS_WITH_AS(copy_blocks({}, 0, {device.data(), 1}, {}), "block_bytes must be > 0, got 0",
                       std::invalid_argument);
  CHECK(copy_blocks({}, 8, {device.data(), 1}, {}) == 0);
  const std::vector<BlockCopy> out = {{CopyKind::kSwapOut, 0, 0, 1}};
  CHECK_THROWS_WITH_AS(copy_blocks(out, 8, {device.data(), 1}, {}),
                       "copies: destination must be blocks in [0, 0), got 1 from 0", std::invalid_argument);
}
