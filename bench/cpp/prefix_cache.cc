// Looking up a prompt of 32768 tokens that is cached whole, and what publishing costs a step in which nothing is new.
#include "fastpaged/kv_cache/prefix_cache.h"

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "benchmarks.h"
#include "fastpaged/kv_cache/kv_cache_manager.h"

namespace fastpaged::bench {

namespace {

constexpr std::int32_t kBlockSize = 16;
constexpr std::int32_t kNumTokens = 32768;
constexpr std::int32_t kNumPrompts = 8;  // in turn, so that no lookup finds its prompt in the processor's caches

// Any token at any place, but the same ones in every run.
std::vector<TokenId> prompt(std::uint32_t seed) {
  std::vector<TokenId> tokens(kNumTokens);
  std::uint32_t state = seed;
  for (TokenId& token : tokens) {
    state = state * 1664525 + 1013904223;
    token = static_cast<TokenId>(state >> 15);
  }
  return tokens;
}

struct Cached {
  KVCacheManager kv_cache{kNumPrompts * kNumTokens / kBlockSize, kBlockSize, 0, {.enabled = true}};
  std::vector<std::vector<TokenId>> prompts;
  std::vector<BlockTable> tables;
  std::vector<PublishedPrefix> published;

  explicit Cached(benchmark::State& state) {
    for (std::int32_t i = 0; i < kNumPrompts; ++i) {
      prompts.push_back(prompt(static_cast<std::uint32_t>(i)));
      BlockTable table = kv_cache.make_table(static_cast<SequenceId>(i));
      if (!kv_cache.reserve(table, 0, kNumTokens)) {
        state.SkipWithError("no room for the prompts");
      }
      kv_cache.publish(table, prompts.back(), kNumTokens, "", published.emplace_back());
      tables.push_back(std::move(table));
    }
  }
};

void lookup(benchmark::State& state) {
  const Cached cached(state);
  std::size_t i = 0;
  for ([[maybe_unused]] auto iteration : state) {
    const PrefixMatch match = cached.kv_cache.match_prefix(cached.prompts[i++ % kNumPrompts], kNumTokens, "");
    if (match.num_tokens != kNumTokens) {
      state.SkipWithError("a cached prompt was not found");
    }
  }
}

void publish_nothing_new(benchmark::State& state) {
  Cached cached(state);
  for ([[maybe_unused]] auto iteration : state) {
    for (std::size_t i = 0; i < kNumPrompts; ++i) {
      cached.kv_cache.publish(cached.tables[i], cached.prompts[i], kNumTokens, "", cached.published[i]);
    }
  }
  if (cached.kv_cache.num_prefix_gains() != static_cast<std::uint64_t>(cached.kv_cache.num_blocks())) {
    state.SkipWithError("something was published twice");
  }
}

}  // namespace

void register_prefix_cache() {
  benchmark::RegisterBenchmark("prefix_lookup/32768", lookup);
  benchmark::RegisterBenchmark("prefix_publish_nothing_new/8", publish_nothing_new);
}

}  // namespace fastpaged::bench
