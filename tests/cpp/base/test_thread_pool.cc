#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

#include "fastpaged/base/check.h"
#include "fastpaged/base/thread_pool.h"
#include "waits_for.h"

namespace fastpaged {
namespace {

// Not atomic: a tile run twice, or beside a later job, is a data race for the thread sanitizer to see.
std::vector<int> counts_after(ThreadPool& pool, std::int64_t num_tiles) {
  std::vector<int> counts(static_cast<std::size_t>(num_tiles), 0);
  pool.parallel_for(num_tiles, [&](std::int64_t tile, int) { ++counts[static_cast<std::size_t>(tile)]; });
  return counts;
}

TEST_CASE("every tile runs once, whatever the number of threads") {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    CHECK(pool.num_threads() == threads);
    for (const std::int64_t tiles : {0, 1, 2, 3, 7, 64, 1000}) {
      CHECK(counts_after(pool, tiles) == std::vector<int>(static_cast<std::size_t>(tiles), 1));
    }
  }
}

TEST_CASE("no tile of one job is taken for a tile of the next") {
  ThreadPool pool(4);
  for (int job = 0; job < 5000; ++job) {
    // The vector of one job is gone before the next begins: a worker left behind would write to freed memory.
    const auto tiles = static_cast<std::int64_t>(2 + job % 5);
    REQUIRE(counts_after(pool, tiles) == std::vector<int>(static_cast<std::size_t>(tiles), 1));
  }
}

TEST_CASE("workers wake up again after they have slept") {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    CHECK(counts_after(pool, 50) == std::vector<int>(50, 1));
  }
}

TEST_CASE("a caller that waits for long tiles sleeps and is woken") {
  ThreadPool pool(2);
  std::atomic<int> done{0};
  pool.parallel_for(2, [&](std::int64_t, int thread) {
    std::this_thread::sleep_for(std::chrono::milliseconds(thread == 0 ? 0 : 3));
    ++done;
  });
  CHECK(done == 2);
}

TEST_CASE("thread numbers are below num_threads and no two threads share one") {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> busy(4);
  std::atomic<bool> shared{false};
  pool.parallel_for(2000, [&](std::int64_t, int thread) {
    if (busy.at(static_cast<std::size_t>(thread)).fetch_add(1) != 0) {
      shared = true;
    }
    busy[static_cast<std::size_t>(thread)].fetch_sub(1);
  });
  CHECK_FALSE(shared);
}

TEST_CASE("each thread begins with its own range of neighbouring tiles") {
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    std::vector<std::int64_t> first(static_cast<std::size_t>(threads), -1);
    std::atomic<int> begun{0};
    std::atomic<bool> all_begun{true};
    pool.parallel_for(3 * threads + 1, [&](std::int64_t tile, int thread) {
      auto& of_thread = first[static_cast<std::size_t>(thread)];
      if (of_thread < 0) {
        of_thread = tile;
        ++begun;
      }
      // Nobody takes a second tile before all have their first.
      if (!testing::waits_for([&] { return begun >= threads; })) {
        all_begun = false;
      }
    });
    CHECK(all_begun);
    for (int thread = 0; thread < threads; ++thread) {
      CHECK(first[static_cast<std::size_t>(thread)] == (thread == 0 ? 0 : 3 * thread + 1));
    }
  }
}

TEST_CASE("a thread whose tiles are done takes those of one that is held up") {
  ThreadPool pool(2);
  std::atomic<int> done{0};
  bool others_done = false;
  pool.parallel_for(10, [&](std::int64_t tile, int) {
    if (tile == 0) {
      others_done = testing::waits_for([&] { return done == 9; });
    }
    ++done;
  });
  CHECK(others_done);
  CHECK(done == 10);
}

TEST_CASE("the exception of a tile reaches the caller and the pool goes on") {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 20; ++round) {
      CHECK_THROWS_WITH_AS(pool.parallel_for(100,
                                             [&](std::int64_t tile, int) {
                                               if (tile == 5 * round) {
                                                 throw std::runtime_error("tile failed");
                                               }
                                             }),
                           "tile failed", std::runtime_error);
      CHECK(counts_after(pool, 10) == std::vector<int>(10, 1));
    }
  }
}

TEST_CASE("callers on several threads take turns") {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  callers.reserve(4);
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int job = 0; job < 200; ++job) {
        wrong += counts_after(pool, 20) == std::vector<int>(20, 1) ? 0 : 1;
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  CHECK(wrong == 0);
}

TEST_CASE("a tile may use another pool but not its own") {
  ThreadPool outer(2);
  ThreadPool inner(2);
  std::atomic<int> sum{0};
  outer.parallel_for(4, [&](std::int64_t, int) { inner.parallel_for(5, [&](std::int64_t, int) { ++sum; }); });
  CHECK(sum == 20);
  CHECK_THROWS_AS(outer.parallel_for(4, [&](std::int64_t, int) { outer.parallel_for(2, [](std::int64_t, int) {}); }),
                  InvariantError);
}

TEST_CASE("the number of threads is checked") {
  for (const int threads : {0, -3, 1025}) {
    CHECK_THROWS_AS(ThreadPool{threads}, std::invalid_argument);
  }
}

}  // namespace
}  // namespace fastpaged
