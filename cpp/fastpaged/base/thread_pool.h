// ThreadPool: runs the tiles of one op on a few threads.
//
// Tiles are fixed by the shape of the work, never by the thread count, and claimed by an atomic
// counter: which thread runs a tile cannot change a bit of the result. Idle workers spin for at
// most 50 us, then sleep. One parallel_for at a time (a second caller waits its turn); the calling
// thread takes part.
//
// How a job is handed over: everything a worker reads of a job is written while the gate is closed and
// empty. A worker enters through the open gate (generation | open bit | workers inside) with one
// compare-exchange, claims tiles, and leaves; the caller closes the gate and waits until nobody is
// inside. So a worker that comes late finds the gate closed, and none can claim a tile of another job.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace fastpaged {

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): two busy atomics have cache lines of their own
class ThreadPool {
 public:
  // num_threads counts the calling thread: 1 starts no worker. Throws std::invalid_argument unless 1..1024.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(tile, thread) once for each tile in [0, num_tiles), with thread in [0, num_threads());
  // returns when all have run. The first exception of a tile is rethrown here; tiles not yet begun are then skipped.
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

  void run(std::int64_t num_tiles, TileFn fn, void* context);
  void work(int thread);
  void claim_tiles(int thread) noexcept;
  bool enter(std::uint64_t& seen_generation);
  void leave();
  void open_gate();
  void close_gate();
  [[nodiscard]] bool news_since(std::uint64_t seen_generation) const;
  void wait_for_news(std::uint64_t seen_generation);

  std::mutex run_mutex_;  // held for the length of a job by the thread that called parallel_for

  // The job: written while the gate is closed and empty.
  TileFn fn_ = nullptr;
  void* context_ = nullptr;
  std::int64_t num_tiles_ = 0;
  std::exception_ptr error_;  // under error_mutex_ while the gate is open
  std::mutex error_mutex_;

  alignas(64) std::atomic<std::int64_t> next_tile_{0};
  alignas(64) std::atomic<std::uint64_t> gate_{0};
  std::atomic<bool> stopping_{false};

  std::mutex sleep_mutex_;
  std::condition_variable wake_workers_;
  std::condition_variable wake_caller_;
  std::atomic<int> num_sleeping_{0};
  std::atomic<bool> caller_sleeps_{false};

  std::vector<std::thread> workers_;
};

}  // namespace fastpaged
