#include "fastpaged/ops/packed_linear.h"

#include <sys/mman.h>

#include <new>
#include <utility>

#include "fastpaged/base/check.h"

namespace fastpaged {

namespace {

// Pages come zeroed from the system and are first touched by the threads that pack; huge ones make both the packing
// and the streaming of the weights cheaper where the system lends them.
std::byte* map_pages(std::size_t num_bytes) {
  void* memory = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::bad_alloc();
  }
#if defined(MADV_HUGEPAGE)
  madvise(memory, num_bytes, MADV_HUGEPAGE);
#endif
  return static_cast<std::byte*>(memory);
}

}  // namespace

PackedLinear::PackedLinear(std::int64_t out_features, std::int64_t in_features, DType dtype, std::size_t num_bytes,
                           const char* isa, bool gated)
    : out_features_(out_features),
      in_features_(in_features),
      dtype_(dtype),
      num_bytes_(num_bytes),
      isa_(isa),
      gated_(gated),
      own_(map_pages(num_bytes)),
      data_(own_, [num_bytes](std::byte* data) { munmap(data, num_bytes); }) {}

PackedLinear::PackedLinear(std::int64_t out_features, std::int64_t in_features, DType dtype, std::size_t num_bytes,
                           const char* isa, bool gated, std::shared_ptr<const std::byte> data)
    : out_features_(out_features),
      in_features_(in_features),
      dtype_(dtype),
      num_bytes_(num_bytes),
      isa_(isa),
      gated_(gated),
      data_(std::move(data)) {}

std::byte* PackedLinear::data() {
  invariant(own_ != nullptr, "PackedLinear: the weight is not this object's own, and is only read");
  return own_;
}

}  // namespace fastpaged
