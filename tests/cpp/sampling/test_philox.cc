#include <doctest/doctest.h>

#include <cstdint>
#include <set>

#include "fastpaged/sampling/philox.h"

namespace fastpaged {
namespace {

// The known answers published with the paper's library (Random123, kat_vectors, philox4x32 with 10 rounds).
TEST_CASE("philox gives the published answers") {
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("uniform is the documented function of the first two philox words") {
  const std::uint64_t bits = 0x6627e8d5 | std::uint64_t{0xe169c58d} << 32;
  CHECK(uniform(0, 0) == (static_cast<double>(bits >> 12) + 0.5) / 4503599627370496.0);
}

TEST_CASE("uniform uses every bit of seed and position") {
  std::set<double> seen;
  for (int bit = 0; bit < 63; ++bit) {
    seen.insert(uniform(std::uint64_t{1} << bit, 0));
    seen.insert(uniform(0, std::int64_t{1} << bit));
  }
  seen.insert(uniform(0, 0));
  seen.insert(uniform(std::uint64_t{1} << 63, 0));
  CHECK(seen.size() == 128);
  CHECK(*seen.begin() > 0.0);
  CHECK(*seen.rbegin() < 1.0);
}

TEST_CASE("sample 0 has the request's seed and other samples share none with neighbouring seeds") {
  std::set<std::uint64_t> seeds;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CHECK(mix(seed, 0) == seed);
    for (std::uint64_t sample = 0; sample < 20; ++sample) {
      seeds.insert(mix(seed, sample));
      CHECK(mix(seed, sample) < std::uint64_t{1} << 53);
    }
  }
  CHECK(seeds.size() == 50 * 20);
}

}  // namespace
}  // namespace fastpaged
