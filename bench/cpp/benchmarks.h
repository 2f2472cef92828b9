// What bench_core measures, one function per file of it.
#pragma once

namespace fastpaged::bench {

void register_block_pool();
void register_block_table();
void register_prefix_cache();
void register_scheduler();

}  // namespace fastpaged::bench
