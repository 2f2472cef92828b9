// Registered here, not by the library's macros: the names are exactly those that bench/README.md lists.
#include <benchmark/benchmark.h>

#include "benchmarks.h"

int main(int argc, char** argv) {
  fastpaged::bench::register_block_pool();
  fastpaged::bench::register_block_table();
  fastpaged::bench::register_prefix_cache();
  fastpaged::bench::register_scheduler();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
