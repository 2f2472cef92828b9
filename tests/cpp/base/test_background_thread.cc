#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>

#include "fastpaged/base/background_thread.h"
#include "fastpaged/base/check.h"
#include "waits_for.h"

namespace fastpaged {
namespace {

TEST_CASE("work runs on another thread, always the same one, and is done when finish() returns") {
  BackgroundThread background;
  std::optional<std::thread::id> worker;
  int sum = 0;
  for (int i = 0; i < 1000; ++i) {
    background.start([&, i] {
      const std::thread::id id = std::this_thread::get_id();
      CHECK(worker.value_or(id) == id);
      worker = id;
      sum += i;
    });
    background.finish();
    REQUIRE(sum == i * (i + 1) / 2);
  }
  CHECK(*worker != std::this_thread::get_id());
}

TEST_CASE("start() does not wait for the work") {
  BackgroundThread background;
  std::atomic<bool> may_end = false;
  bool ended_in_time = false;
  background.start([&] { ended_in_time = testing::waits_for([&] { return may_end.load(); }); });
  may_end.store(true);  // too late, if start() waited
  background.finish();
  CHECK(ended_in_time);
}

TEST_CASE("what the work throws comes out of finish(), once") {
  BackgroundThread background;
  background.start([] { throw std::domain_error("no"); });
  CHECK_THROWS_WITH_AS(background.finish(), "no", std::domain_error);
  int runs = 0;
  background.start([&] { ++runs; });
  background.finish();
  CHECK(runs == 1);
}

TEST_CASE("a second start() and a finish() of nothing are errors that change nothing") {
  BackgroundThread background;
  CHECK_THROWS_AS(background.finish(), InvariantError);
  int runs = 0;
  background.start([&] { ++runs; });
  CHECK_THROWS_AS(background.start([&] { runs += 10; }), InvariantError);
  background.finish();
  CHECK(runs == 1);
}

TEST_CASE("the destructor waits for the work") {
  std::atomic<int> done = 0;
  {
    BackgroundThread background;
    background.start([&] {
      for (int i = 0; i < 1000; ++i) {
        std::this_thread::yield();
      }
      done = 1;
    });
  }
  CHECK(done == 1);
}

TEST_CASE("a forked child is refused, and never waits for the thread that is not there") {
  auto background = std::make_unique<BackgroundThread>();
  background->start([] {});
  const pid_t child = fork();
  if (child == 0) {
    int refused = 0;
    try {
      background->finish();
    } catch (const std::runtime_error&) {
      ++refused;
    }
    background.reset();
    _exit(refused == 1 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  background->finish();
}

}  // namespace
}  // namespace fastpaged
