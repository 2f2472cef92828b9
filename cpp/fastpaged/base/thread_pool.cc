#include "fastpaged/base/thread_pool.h"

#include <pthread.h>
#include <sched.h>
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
// Who waits longer than between two ops may well be waiting for a thread that wants this very core.
constexpr auto kOwnCoreTime = std::chrono::microseconds(8);

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

// Spins until holds() or kSpinTime has passed; says whether it holds. Soon it lets others run in between: where there
// are more threads than cores, of this engine or of another, they are waited for.
template <typename Condition>
bool spin_until(const Condition& holds) {
  constexpr int kChecksPerClock = 32;
  const auto begin = std::chrono::steady_clock::now();
  auto waited = std::chrono::steady_clock::duration::zero();
  do {
    for (int i = 0; i < kChecksPerClock; ++i) {
      if (holds()) {
        return true;
      }
      relax_cpu();
    }
    if (waited > kOwnCoreTime) {
      sched_yield();
    }
    waited = std::chrono::steady_clock::now() - begin;
  } while (waited < kSpinTime);
  return holds();
}

// How many forks lie between the process in which this was first called and this one. Asking for the process's id would
// be a system call for every op.
std::atomic<int>& num_forks() {
  static std::atomic<int> forks{0};
  static const int failed = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  invariant(failed == 0, "ThreadPool: no memory to be told of forks");
  return forks;
}

// The tiles one thread takes first, in order, so that what lies side by side in memory is read in one go. Others help
// once their own are done.
struct alignas(64) TileRange {
  std::atomic<std::int64_t> next{0};
  std::int64_t end = 0;  // written while the gate is closed and empty
};

}  // namespace

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): the busy atomics have a cache line of their own
class ThreadPool::Team {
 public:
  Team() = default;
  ~Team();  // joins the workers
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  void start(int num_threads);
  [[nodiscard]] int num_threads() const { return static_cast<int>(workers_.size()) + 1; }
  [[nodiscard]] bool is_of_this_process() const { return num_forks().load(std::memory_order_relaxed) == num_forks_; }
  void run(std::int64_t num_tiles, TileFn fn, void* context);

 private:
  void require_own_process() const;
  void work(int thread);
  void share_out(std::int64_t num_tiles);
  void claim_tiles(int thread) noexcept;
  void run_tile(std::int64_t tile, int thread) noexcept;
  bool enter(std::uint64_t& seen_generation);
  void leave();
  void open_gate();
  void close_gate();
  [[nodiscard]] bool news_since(std::uint64_t seen_generation) const;
  void wait_for_news(std::uint64_t seen_generation);

  const pid_t process_ = getpid();
  const int num_forks_ = num_forks().load(std::memory_order_relaxed);
  std::mutex run_mutex_;  // held for the length of a job by the thread that called parallel_for

  // The job: written while the gate is closed and empty.
  TileFn fn_ = nullptr;
  void* context_ = nullptr;
  std::exception_ptr error_;  // under error_mutex_ while the gate is open
  std::mutex error_mutex_;

  std::unique_ptr<TileRange[]> ranges_;  // of each thread
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
  ranges_ = std::make_unique<TileRange[]>(static_cast<std::size_t>(num_threads));
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
  error_ = nullptr;
  share_out(num_tiles);

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

void ThreadPool::Team::share_out(std::int64_t num_tiles) {
  const std::int64_t threads = num_threads();
  const std::int64_t each = num_tiles / threads;
  const std::int64_t longer = num_tiles % threads;
  std::int64_t begin = 0;
  for (std::int64_t t = 0; t < threads; ++t) {
    ranges_[t].next.store(begin, std::memory_order_relaxed);
    begin += each + (t < longer ? 1 : 0);
    ranges_[t].end = begin;
  }
}

void ThreadPool::Team::claim_tiles(int thread) noexcept {
  const void* outer = std::exchange(running_team, this);
  const int threads = num_threads();
  for (int i = 0; i < threads; ++i) {
    TileRange& range = ranges_[(thread + i) % threads];
    while (range.next.load(std::memory_order_relaxed) < range.end) {
      const std::int64_t tile = range.next.fetch_add(1, std::memory_order_relaxed);
      if (tile < range.end) {
        run_tile(tile, thread);
      }
    }
  }
  running_team = outer;
}

void ThreadPool::Team::run_tile(std::int64_t tile, int thread) noexcept {
  try {
    fn_(context_, tile, thread);
  } catch (...) {
    const std::scoped_lock lock(error_mutex_);
    if (!error_) {
      error_ = std::current_exception();
    }
    for (int t = 0; t < num_threads(); ++t) {
      ranges_[t].next.store(ranges_[t].end, std::memory_order_relaxed);
    }
  }
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
