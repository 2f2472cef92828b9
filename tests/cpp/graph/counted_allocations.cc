#include "graph/counted_allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int> counted{0};
}  // namespace

int fastpaged::testing::num_allocations() {
  return counted;
}

void* operator new(std::size_t num_bytes, const std::nothrow_t& /*tag*/) noexcept {
  ++counted;
  return std::malloc(num_bytes);
}
void* operator new(std::size_t num_bytes) {
  void* const memory = operator new(num_bytes, std::nothrow);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}
void* operator new(std::size_t num_bytes, std::align_val_t alignment) {
  ++counted;
  const auto step = static_cast<std::size_t>(alignment);
  void* const memory = std::aligned_alloc(step, (num_bytes + step - 1) / step * step);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t /*num_bytes*/) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t /*num_bytes*/, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}
