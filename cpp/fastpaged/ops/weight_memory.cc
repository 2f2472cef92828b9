#include "fastpaged/ops/weight_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <mutex>
#include <new>

namespace fastpaged {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kSlabBytes = std::size_t{64} << 20;  // of address space: pages come when they are touched

constexpr std::size_t rounded_up(std::size_t num_bytes, std::size_t unit) {
  return (num_bytes + unit - 1) / unit * unit;
}

class Slab {
 public:
  explicit Slab(std::size_t num_bytes) : mapped_bytes_(num_bytes + kHugePage), num_bytes_(num_bytes) {
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) {
      throw std::bad_alloc();
    }
    const std::size_t before = -reinterpret_cast<std::uintptr_t>(mapped_) % kHugePage;
    begin_ = static_cast<std::byte*>(mapped_) + before;
#if defined(MADV_HUGEPAGE)
    madvise(begin_, num_bytes, MADV_HUGEPAGE);
#endif
  }
  ~Slab() { munmap(mapped_, mapped_bytes_); }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  // The next num_bytes, or null where there is no room.
  std::byte* take(std::size_t num_bytes) {
    if (num_bytes > num_bytes_ - used_) {
      return nullptr;
    }
    std::byte* const taken = begin_ + used_;
    used_ += rounded_up(num_bytes, kPage);
    return taken;
  }

 private:
  std::size_t mapped_bytes_;
  std::size_t num_bytes_;  // from begin_ on, a multiple of kHugePage
  std::size_t used_ = 0;   // a multiple of kPage
  void* mapped_ = nullptr;
  std::byte* begin_ = nullptr;
};

std::shared_ptr<std::byte> take_from(const std::shared_ptr<Slab>& slab, std::size_t num_bytes) {
  std::byte* const taken = slab->take(num_bytes);
  return taken == nullptr ? nullptr : std::shared_ptr<std::byte>(slab, taken);
}

}  // namespace

std::shared_ptr<std::byte> weight_memory(std::size_t num_bytes) {
  if (num_bytes > kSlabBytes / 4) {  // large enough to have one of its own
    return take_from(std::make_shared<Slab>(rounded_up(num_bytes, kHugePage)), num_bytes);
  }
  static std::mutex mutex;
  static std::weak_ptr<Slab> open;  // the weights in it own it
  const std::scoped_lock lock(mutex);
  std::shared_ptr<Slab> slab = open.lock();
  std::shared_ptr<std::byte> taken = slab == nullptr ? nullptr : take_from(slab, num_bytes);
  if (taken == nullptr) {
    slab = std::make_shared<Slab>(kSlabBytes);
    open = slab;
    taken = take_from(slab, num_bytes);
  }
  return taken;
}

}  // namespace fastpaged
