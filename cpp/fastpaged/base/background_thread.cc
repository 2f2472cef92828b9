#include "fastpaged/base/background_thread.h"

#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "fastpaged/base/check.h"

namespace fastpaged {

class BackgroundThread::Thread {
 public:
  Thread();
  ~Thread();  // joins
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  void start(std::function<void()> work);
  void finish();
  [[nodiscard]] bool is_of_this_process() const { return getpid() == process_; }

 private:
  void require_own_process() const;
  void work_until_stopped();

  const pid_t process_ = getpid();
  bool started_ = false;  // the caller's

  std::mutex mutex_;  // of all below
  std::condition_variable wake_thread_;
  std::condition_variable wake_caller_;
  std::function<void()> work_;  // empty: there is none, or it is done
  std::exception_ptr error_;
  bool stopping_ = false;

  std::thread thread_;
};

BackgroundThread::Thread::Thread() {
  try {
    thread_ = std::thread([this] { work_until_stopped(); });
  } catch (const std::system_error& error) {
    throw std::runtime_error("the system refuses to start a thread (" + error.code().message() + ")");
  }
}

BackgroundThread::Thread::~Thread() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_thread_.notify_one();
  thread_.join();
}

void BackgroundThread::Thread::require_own_process() const {
  if (!is_of_this_process()) [[unlikely]] {
    throw std::runtime_error("this background thread was made in process " + std::to_string(process_) +
                             "; a forked child must make its own engine");
  }
}

void BackgroundThread::Thread::start(std::function<void()> work) {
  require_own_process();
  invariant(!started_, "BackgroundThread: started twice without finish()");
  started_ = true;
  {
    const std::scoped_lock lock(mutex_);
    work_ = std::move(work);
    error_ = nullptr;
  }
  wake_thread_.notify_one();
}

void BackgroundThread::Thread::finish() {
  require_own_process();
  invariant(started_, "BackgroundThread: finish() without start()");
  std::unique_lock lock(mutex_);
  wake_caller_.wait(lock, [this] { return !work_; });
  started_ = false;
  if (error_) {
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

void BackgroundThread::Thread::work_until_stopped() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_thread_.wait(lock, [this] { return stopping_ || work_; });
    if (!work_) {
      return;
    }
    std::exception_ptr error;
    lock.unlock();
    try {
      work_();  // the caller does not touch it until it is done
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = std::exchange(error, nullptr);
    work_ = nullptr;
    wake_caller_.notify_one();
  }
}

BackgroundThread::BackgroundThread() : thread_(std::make_unique<Thread>()) {}

BackgroundThread::~BackgroundThread() {
  if (!thread_->is_of_this_process()) {
    [[maybe_unused]] const Thread* const lost = thread_.release();  // on purpose: there is no such thread to join
  }
}

void BackgroundThread::start(std::function<void()> work) {
  thread_->start(std::move(work));
}

void BackgroundThread::finish() {
  thread_->finish();
}

}  // namespace fastpaged
