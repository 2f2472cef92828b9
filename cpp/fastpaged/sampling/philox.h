// Philox4x32-10: random numbers as a pure function of (key, counter), so that nothing has to be remembered between
// steps and a preempted, moved or replayed request draws the same numbers again.
// J. Salmon, M. Moraes, R. Dror, D. Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

namespace fastpaged {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

constexpr PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9;  // the golden ratio and sqrt(3) - 1: the paper's Weyl sequence of keys
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// What a counter is used for: uses with different purposes never share a counter.
enum class RandomPurpose : std::uint32_t { kToken = 0, kSampleSeed = 1 };

// 64 random bits: the first two words of philox with key `seed` and counter (index, purpose, 0), low words first.
constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t index, RandomPurpose purpose) {
  const PhiloxCounter words = philox4x32({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                                          static_cast<std::uint32_t>(purpose), 0},
                                         {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return words[0] | std::uint64_t{words[1]} << 32;
}

// The number in (0, 1) that decides the token at `position`: (k + 1/2) / 2^52 with k the upper 52 of the random bits.
// Exact in a double, never 0, never 1.
constexpr double uniform(std::uint64_t seed, std::int64_t position) {
  const std::uint64_t bits = random_bits(seed, static_cast<std::uint64_t>(position), RandomPurpose::kToken);
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

// The seed of sample i of a request. Sample 0 keeps the request's own seed, so that n = 1 repeats it; the others are
// hashed and not counted up, so that requests seeded 1, 2, 3 share no sample; below 2^53, so that a reader of JSON with
// doubles for numbers can give a seed back that it was shown.
constexpr std::uint64_t mix(std::uint64_t seed, std::uint64_t sample) {
  return sample == 0 ? seed : random_bits(seed, sample, RandomPurpose::kSampleSeed) >> 11;
}

}  // namespace fastpaged
