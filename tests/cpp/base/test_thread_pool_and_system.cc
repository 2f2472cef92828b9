// The thread pool where the system has its say: threads that it refuses to start, and processes that are forked.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "fastpaged/base/thread_pool.h"

namespace {
std::atomic<int> num_threads_allowed{std::numeric_limits<int>::max()};
}  // namespace

// This test binary's own way to start a thread: the system's, until as many as are allowed have been started. It must
// be visible to take the place of the system's in the C++ library.
extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t* thread,
                                                                     const pthread_attr_t* attributes,
                                                                     void* (*start)(void*), void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (num_threads_allowed.fetch_sub(1) <= 0) {
    return EAGAIN;
  }
  return create(thread, attributes, start, argument);
}

namespace fastpaged {
namespace {

std::string refusal(int num_threads, int num_allowed) {
  num_threads_allowed = num_allowed;
  std::string message;
  try {
    const ThreadPool pool(num_threads);
  } catch (const std::invalid_argument& error) {
    message = error.what();
  }
  num_threads_allowed = std::numeric_limits<int>::max();
  return message;
}

int sum_of_tiles(ThreadPool& pool) {
  std::atomic<int> sum{0};
  pool.parallel_for(10, [&](std::int64_t tile, int) { sum += static_cast<int>(tile); });
  return sum;
}

// The exit status of a forked process that runs `child`; nothing if it did not come to its end. One that hangs is ended
// by its alarm.
template <typename Fn>
std::optional<int> exit_status_of_fork(const Fn& child) {
  const pid_t process = fork();
  if (process == 0) {
    alarm(60);
    _exit(child());
  }
  int status = 0;
  REQUIRE(waitpid(process, &status, 0) == process);
  return WIFEXITED(status) ? std::optional(WEXITSTATUS(status)) : std::nullopt;
}

TEST_CASE("threads that the system refuses to start are a typed error, and those it started are joined") {
  // The calling thread is thread 1. A worker left behind would end this process in the destructor of its std::thread.
  for (const int num_allowed : {0, 1, 6}) {
    const std::string message = refusal(8, num_allowed);
    CHECK(message.find("num_threads = 8: the system refuses to start thread " + std::to_string(num_allowed + 2) +
                       " (") == 0);
  }
  CHECK(refusal(8, 7).empty());
  ThreadPool pool(8);
  CHECK(sum_of_tiles(pool) == 45);
}

TEST_CASE("a forked child drops the pool it inherits and does not wait for its threads") {
  for (const int num_threads : {1, 3}) {
    auto pool = std::make_unique<ThreadPool>(num_threads);
    CHECK(sum_of_tiles(*pool) == 45);
    const auto status = exit_status_of_fork([&] {
      pool.reset();
      return 7;
    });
    CHECK(status == 7);
    CHECK(sum_of_tiles(*pool) == 45);
  }
}

TEST_CASE("a forked child that uses the pool it inherits is told to make its own") {
  for (const int num_threads : {1, 3}) {
    ThreadPool pool(num_threads);
    CHECK(sum_of_tiles(pool) == 45);
    const std::string expected = "this thread pool was made in process " + std::to_string(getpid()) +
                                 "; a forked child must make its own engine";
    for (const int num_tiles : {0, 1, 100}) {
      const auto status = exit_status_of_fork([&] {
        try {
          pool.parallel_for(num_tiles, [](std::int64_t, int) { _exit(1); });
        } catch (const std::runtime_error& error) {
          return error.what() == expected && pool.num_threads() == num_threads ? 7 : 2;
        }
        return 3;
      });
      CHECK(status == 7);
    }
  }
}

}  // namespace
}  // namespace fastpaged
