// for_each_tile: parallel_for in the default floating-point environment. Whoever calls an op may have set another
// (denormals flushed, say) on its own thread, and a tile's bits must not depend on the thread that claims it.
#pragma once

#include <cstdint>

#include "fastpaged/base/default_float_environment.h"
#include "fastpaged/base/thread_pool.h"

namespace fastpaged::reference {

template <typename Fn>
void for_each_tile(ThreadPool& pool, std::int64_t num_tiles, const Fn& fn) {
  pool.parallel_for(num_tiles, [&](std::int64_t tile, int) {
    const DefaultFloatEnvironment environment;
    fn(tile);
  });
}

}  // namespace fastpaged::reference
