// BackgroundThread: one thread that does one piece of work at a time, while whoever gave it does something else.
//
// Both sides sleep while they wait: the cores belong to the work. fork() copies no threads: in the child start() and
// finish() throw, and the destructor leaves alone what nobody there will ever answer for.
#pragma once

#include <functional>
#include <memory>

namespace fastpaged {

class BackgroundThread {
 public:
  BackgroundThread();   // throws std::runtime_error if the system refuses a thread
  ~BackgroundThread();  // waits for the work
  BackgroundThread(const BackgroundThread&) = delete;
  BackgroundThread& operator=(const BackgroundThread&) = delete;

  // Returns at once. Throws std::runtime_error in a process forked from the one that made it.
  // REQUIRES: what was started before is finished (throws InvariantError).
  void start(std::function<void()> work);
  // Waits for the end of the work and rethrows what it threw. Throws std::runtime_error in a forked process.
  // REQUIRES: something was started (throws InvariantError).
  void finish();

 private:
  class Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace fastpaged
