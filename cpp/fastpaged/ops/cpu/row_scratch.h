// RowScratch: a thread's memory for rows of x in the layout of a linear kernel. They are laid out by the first of the
// thread's tiles that needs them, and found by those that follow: packing costs a thread one pass over its rows,
// however many outputs there are. The memory is kept for the next op.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace fastpaged::cpu {

class RowScratch {
 public:
  // A number no other call of an op has.
  static std::uint64_t next_call() {
    static std::atomic<std::uint64_t> calls{0};
    return calls.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  static RowScratch& of_this_thread() {
    thread_local RowScratch scratch;
    return scratch;
  }

  // The rows from first_row on of this call: num_bytes (> 0) of memory, on a cache line, that fill(memory) has written.
  template <typename Fn>
  void* get(std::uint64_t call, std::int64_t first_row, std::int64_t num_bytes, const Fn& fill) {
    if (call != call_ || first_row != first_row_) {
      call_ = 0;
      reserve(num_bytes);
      fill(static_cast<void*>(memory_.get()));
      call_ = call;
      first_row_ = first_row;
    }
    return memory_.get();
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, kAlignment); }
  };

  void reserve(std::int64_t num_bytes) {
    if (num_bytes > capacity_) {
      memory_.reset();
      capacity_ = 0;
      memory_.reset(static_cast<std::byte*>(::operator new[](static_cast<std::size_t>(num_bytes), kAlignment)));
      capacity_ = num_bytes;
    }
  }

  std::unique_ptr<std::byte[], Free> memory_;
  std::int64_t capacity_ = 0;
  std::uint64_t call_ = 0;  // 0: holds no rows
  std::int64_t first_row_ = 0;
};

}  // namespace fastpaged::cpu
