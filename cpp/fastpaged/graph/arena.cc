#include "fastpaged/graph/arena.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace fastpaged {

Arena::Arena(std::size_t num_bytes) : num_bytes_(num_bytes) {
  if (num_bytes == 0) {
    return;
  }
  void* const data =
      mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    throw std::bad_alloc();
  }
  data_ = static_cast<std::byte*>(data);
}

Arena::~Arena() {
  if (data_ != nullptr) {
    munmap(data_, num_bytes_);
  }
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

}  // namespace fastpaged
