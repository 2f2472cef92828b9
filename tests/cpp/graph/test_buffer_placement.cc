#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "fastpaged/graph/buffer_placement.h"

namespace fastpaged {
namespace {

std::vector<Lifetime> random_lifetimes(std::mt19937& random) {
  std::vector<Lifetime> lifetimes(1 + random() % 40);
  for (Lifetime& lifetime : lifetimes) {
    lifetime.first = static_cast<std::int32_t>(random() % 30);
    lifetime.last = lifetime.first + static_cast<std::int32_t>(random() % 6);
    lifetime.num_bytes = 1 + random() % 1000;
  }
  return lifetimes;
}

// The most bytes alive at any one node: no placement can do with less.
std::size_t most_alive(const std::vector<Lifetime>& lifetimes) {
  std::size_t most = 0;
  for (std::int32_t node = 0; node < 40; ++node) {
    std::size_t alive = 0;
    for (const Lifetime& lifetime : lifetimes) {
      alive += lifetime.first <= node && node <= lifetime.last ? lifetime.num_bytes : 0;
    }
    most = std::max(most, alive);
  }
  return most;
}

TEST_CASE("no two buffers alive together share a byte, whatever the lifetimes") {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const std::vector<Lifetime> lifetimes = random_lifetimes(random);
    const Placement placement = place_buffers(lifetimes, 64);
    REQUIRE(placement.offsets.size() == lifetimes.size());
    std::size_t sum = 0;
    // Slow and obvious: who owns each byte at each node.
    for (std::int32_t node = 0; node < 40; ++node) {
      std::vector<int> owners(placement.num_bytes, 0);
      for (std::size_t i = 0; i < lifetimes.size(); ++i) {
        if (lifetimes[i].first <= node && node <= lifetimes[i].last) {
          REQUIRE(placement.offsets[i] + lifetimes[i].num_bytes <= placement.num_bytes);
          for (std::size_t byte = 0; byte < lifetimes[i].num_bytes; ++byte) {
            owners[placement.offsets[i] + byte] += 1;
          }
        }
      }
      REQUIRE((owners.empty() || *std::max_element(owners.begin(), owners.end()) <= 1));
    }
    for (std::size_t i = 0; i < lifetimes.size(); ++i) {
      CHECK(placement.offsets[i] % 64 == 0);
      sum += (lifetimes[i].num_bytes + 63) / 64 * 64;
    }
    CHECK(placement.num_bytes >= most_alive(lifetimes));
    CHECK(placement.num_bytes <= sum);
  }
}

TEST_CASE("buffers that follow one another take the same place") {
  std::vector<Lifetime> chain(10);
  for (std::int32_t i = 0; i < 10; ++i) {
    chain[static_cast<std::size_t>(i)] = {i, i + 1, 640};
  }
  CHECK(place_buffers(chain, 64).num_bytes == 1280);
}

TEST_CASE("a buffer that is the last reader's input is not its output's place") {
  const std::vector<Lifetime> lifetimes = {{0, 1, 64}, {1, 2, 64}};
  CHECK(place_buffers(lifetimes, 64).offsets[0] != place_buffers(lifetimes, 64).offsets[1]);
}

}  // namespace
}  // namespace fastpaged
