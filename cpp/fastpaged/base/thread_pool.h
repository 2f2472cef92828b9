// ThreadPool: runs the tiles of one op on a few threads.
//
// Tiles are fixed by the shape of the work, never by the thread count, and claimed one by one: which thread runs a tile
// cannot change a bit of the result. Each thread claims from a range of neighbouring tiles first, then from those of
// the others. Idle workers spin for at most 50 us, soon giving way to others, then sleep. One parallel_for at a time (a
// second caller waits its turn); the calling thread takes part.
//
// How a job is handed over: everything a worker reads of a job is written while the gate is closed and
// empty. A worker enters through the open gate (generation | open bit | workers inside) with one
// compare-exchange, claims tiles, and leaves; the caller closes the gate and waits until nobody is
// inside. So a worker that comes late finds the gate closed, and none can claim a tile of another job.
//
// fork() copies the pool but none of its workers. In the child a pool made before is refused by parallel_for, and its
// destructor leaves it alone: to join threads that are not there, or to destroy what they wait on, would never return.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace fastpaged {

class ThreadPool {
 public:
  // num_threads counts the calling thread: 1 starts no worker. Throws std::invalid_argument unless 1..1024, and if the
  // system refuses to start as many.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int num_threads() const;

  // Calls fn(tile, thread) once for each tile in [0, num_tiles), with thread in [0, num_threads());
  // returns when all have run. The first exception of a tile is rethrown here; tiles not yet begun are then skipped.
  // Throws std::runtime_error in a process forked from the one that made the pool.
  // REQUIRES: not called from within a tile of the same pool (throws InvariantError).
  template <typename Fn>
  void parallel_for(std::int64_t num_tiles, Fn&& fn) {
    using Callable = std::remove_reference_t<Fn>;
    run(
        num_tiles,
        [](void* context, std::int64_t tile, int thread) { (*static_cast<Callable*>(context))(tile, thread); },
        const_cast<void*>(static_cast<const void*>(std::addressof(fn))));
  }

 private:
  using TileFn = void (*)(void* context, std::int64_t tile, int thread);
  class Team;  // the workers and all that is shared with them

  void run(std::int64_t num_tiles, TileFn fn, void* context);

  std::unique_ptr<Team> team_;
};

}  // namespace fastpaged
