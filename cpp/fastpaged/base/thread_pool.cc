#include "fastpaged/base/thread_pool.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "fastpaged/base/check.h"

namespace fastpaged {
namespace {

constexpr int kMaxThreads = 1024;
constexpr auto kSpinTime = std::chrono::microseconds(50);

// The gate: workers inside in the low bits, then the open bit, then the generation of the job.
constexpr std::uint64_t kOneWorker = 1;
constexpr std::uint64_t kOpen = std::uint64_t{1} << 16;
constexpr std::uint64_t kOneGeneration = std::uint64_t{1} << 17;
constexpr std::uint64_t kWorkersMask = kOpen - 1;

std::uint64_t generation_of(std::uint64_t gate) {
  return gate / kOneGeneration;
}
bool is_open(std::uint64_t gate) {
  return (gate & kOpen) != 0;
}
bool is_empty(std::uint64_t gate) {
  return (gate & kWorkersMask) == 0;
}

// The team whose tile this thread is running.
thread_local const void* running_team = nullptr;

void relax_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until holds() or kSpinTime has passed; says whether it holds.
template <typename Condition>
bool spin_until(const Condition& holds) {
  constexpr int kChecksPerClock = 64;
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kChecksPerClock; ++i) {
      if (holds()) {
        return true;
      }
      relax_cpu();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return holds();
}

}  // namespace

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): two busy atomics have cache lines of their own
class ThreadPool::Team {
 public:
  Team() = default;
  ~Team();  // joins the workers
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  void start(int num_threads);
  [[nodiscard]] int num_threads() const { return static_cast<int>(workers_.size()) + 1; }
  [[nodiscard]] bool is_of_this_process() const { return getpid() == process_; }
  void run(std::int64_t num_tiles, TileFn fn, void* context);

 private:
  void require_own_process() const;
  void work(int thread);
  void claim_tiles(int thread) noexcept;
  bool enter(std::uint64_t& seen_generation);
  void leave();
  void open_gate();
  void close_gate();
  [[nodiscard]] bool news_since(std::uint64_t seen_generation) const;
  void wait_for_news(std::uint64_t seen_generation);

  const pid_t process_ = getpid();
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

ThreadPool::ThreadPool(int num_threads) {
  require(num_threads >= 1 && num_threads <= kMaxThreads, [&] {
    return "num_threads must be in 1.." + std::to_string(kMaxThreads) + ", got " + std::to_string(num_threads);
  });
  team_ = std::make_unique<Team>();
  team_->start(num_threads);
}

ThreadPool::~ThreadPool() {
  if (!team_->is_of_this_process()) {
    [[maybe_unused]] const Team* const lost = team_.release();  // on purpose, see the header
  }
}

int ThreadPool::num_threads() const {
  return team_->num_threads();
}

void ThreadPool::run(std::int64_t num_tiles, TileFn fn, void* context) {
  team_->run(num_tiles, fn, context);
}

void ThreadPool::Team::start(int num_threads) {
  workers_.reserve(static_cast<std::size_t>(num_threads - 1));
  for (int thread = 1; thread < num_threads; ++thread) {
    try {
      workers_.emplace_back([this, thread] { work(thread); });
    } catch (const std::system_error& error) {
      throw std::invalid_argument("num_threads = " + std::to_string(num_threads) +
                                  ": the system refuses to start thread " + std::to_string(thread + 1) + " (" +
                                  error.code().message() + ")");
    }
  }
}

ThreadPool::Team::~Team() {
  {
    const std::scoped_lock lock(sleep_mutex_);
    stopping_.store(true);
  }
  wake_workers_.notify_all();
  for (std::thread& worker : workers_) {
    worker.join();
  }
}

void ThreadPool::Team::require_own_process() const {
  if (!is_of_this_process()) [[unlikely]] {
    throw std::runtime_error("this thread pool was made in process " + std::to_string(process_) +
                             "; a forked child must make its own engine");
  }
}

void ThreadPool::Team::run(std::int64_t num_tiles, TileFn fn, void* context) {
  require_own_process();
  invariant(running_team != this, "ThreadPool: parallel_for called from within a tile");
  if (num_tiles <= 0) {
    return;
  }
  const std::scoped_lock lock(run_mutex_);
  fn_ = fn;
  context_ = context;
  num_tiles_ = num_tiles;
  error_ = nullptr;
  next_tile_.store(0, std::memory_order_relaxed);

  const bool alone = workers_.empty() || num_tiles == 1;
  if (!alone) {
    open_gate();
  }
  claim_tiles(0);
  if (!alone) {
    close_gate();
  }
  if (error_) {
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

void ThreadPool::Team::claim_tiles(int thread) noexcept {
  const void* outer = std::exchange(running_team, this);
  for (;;) {
    const std::int64_t tile = next_tile_.fetch_add(1, std::memory_order_relaxed);
    if (tile >= num_tiles_) {
      break;
    }
    try {
      fn_(context_, tile, thread);
    } catch (...) {
      const std::scoped_lock lock(error_mutex_);
      if (!error_) {
        error_ = std::current_exception();
      }
      next_tile_.store(num_tiles_, std::memory_order_relaxed);
    }
  }
  running_team = outer;
}

void ThreadPool::Team::open_gate() {
  gate_.fetch_add(kOneGeneration + kOpen);
  // Sequentially consistent on both sides: either we see the sleeper, or it sees the open gate before it sleeps.
  if (num_sleeping_.load() > 0) {
    {
      const std::scoped_lock lock(sleep_mutex_);
    }
    wake_workers_.notify_all();
  }
}

void ThreadPool::Team::close_gate() {
  gate_.fetch_sub(kOpen);
  const auto everyone_left = [this] { return is_empty(gate_.load()); };
  if (spin_until(everyone_left)) {
    return;
  }
  std::unique_lock lock(sleep_mutex_);
  caller_sleeps_.store(true);
  wake_caller_.wait(lock, everyone_left);
  caller_sleeps_.store(false);
}

void ThreadPool::Team::work(int thread) {
  std::uint64_t seen_generation = 0;
  while (!stopping_.load(std::memory_order_relaxed)) {
    if (enter(seen_generation)) {
      claim_tiles(thread);
      leave();
    } else {
      wait_for_news(seen_generation);
    }
  }
}

// True if this thread is inside a job it had not seen. A job is entered once at most: what is left of it afterwards is
// for the others to finish. One that closed before this thread came is seen too: another may follow soon, so spin
// again.
bool ThreadPool::Team::enter(std::uint64_t& seen_generation) {
  std::uint64_t gate = gate_.load();
  if (generation_of(gate) == seen_generation) {
    return false;
  }
  bool inside = false;
  while (is_open(gate) && !inside) {
    inside = gate_.compare_exchange_weak(gate, gate + kOneWorker);
  }
  seen_generation = generation_of(gate);
  return inside;
}

void ThreadPool::Team::leave() {
  const std::uint64_t gate = gate_.fetch_sub(kOneWorker) - kOneWorker;
  if (is_empty(gate) && !is_open(gate) && caller_sleeps_.load()) {
    {
      const std::scoped_lock lock(sleep_mutex_);
    }
    wake_caller_.notify_one();
  }
}

bool ThreadPool::Team::news_since(std::uint64_t seen_generation) const {
  return stopping_.load() || generation_of(gate_.load()) != seen_generation;
}

void ThreadPool::Team::wait_for_news(std::uint64_t seen_generation) {
  const auto news = [&] { return news_since(seen_generation); };
  if (spin_until(news)) {
    return;
  }
  std::unique_lock lock(sleep_mutex_);
  num_sleeping_.fetch_add(1);
  wake_workers_.wait(lock, news);
  num_sleeping_.fetch_sub(1);
}

}  // namespace fastpaged
