// Branching off a 1024-token context, and the first token that the branch writes for itself.
#include "fastpaged/kv_cache/block_table.h"

#include <benchmark/benchmark.h>

#include "benchmarks.h"
#include "fastpaged/kv_cache/kv_cache_manager.h"

namespace fastpaged::bench {

namespace {

constexpr std::int32_t kNumTokens = 1020;  // 64 blocks of 16, the last one in part

void fork(benchmark::State& state) {
  KVCacheManager kv_cache(256, 16);
  BlockTable parent = kv_cache.make_table(1);
  if (!kv_cache.reserve(parent, 0, kNumTokens)) {
    state.SkipWithError("no room for the parent");
  }
  for ([[maybe_unused]] auto iteration : state) {
    const BlockTable child = parent.fork(2, parent.size());
    benchmark::DoNotOptimize(child.blocks().data());
  }
}

void fork_and_copy_on_write(benchmark::State& state) {
  KVCacheManager kv_cache(256, 16);
  BlockTable parent = kv_cache.make_table(1);
  if (!kv_cache.reserve(parent, 0, kNumTokens)) {
    state.SkipWithError("no room for the parent");
  }
  for ([[maybe_unused]] auto iteration : state) {
    BlockTable child = parent.fork(2, parent.size());
    if (!kv_cache.reserve(child, kNumTokens, 1) || kv_cache.take_copies().size() != 1) {
      state.SkipWithError("the shared block was not copied");
    }
  }
}

}  // namespace

void register_block_table() {
  benchmark::RegisterBenchmark("block_table/fork/64", fork);
  benchmark::RegisterBenchmark("block_table/fork_and_copy_on_write/64", fork_and_copy_on_write);
}

}  // namespace fastpaged::bench
