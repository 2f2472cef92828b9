// Handing out and taking back the blocks of one context.
#include "fastpaged/kv_cache/block_pool.h"

#include <benchmark/benchmark.h>

#include "benchmarks.h"

namespace fastpaged::bench {

namespace {

constexpr std::int32_t kNumBlocks = 64;  // 1024 tokens

void allocate_and_release(benchmark::State& state) {
  BlockPool pool("device", 16384);
  std::vector<BlockId> blocks(kNumBlocks);
  for ([[maybe_unused]] auto iteration : state) {
    for (BlockId& block : blocks) {
      block = pool.allocate(1).value_or(0);
    }
    for (std::size_t i = blocks.size(); i-- > 0;) {
      pool.release(blocks[i], 1);
    }
    benchmark::DoNotOptimize(blocks.data());
  }
}

}  // namespace

void register_block_pool() {
  benchmark::RegisterBenchmark("block_pool/allocate_and_release/64", allocate_and_release);
}

}  // namespace fastpaged::bench
