// Workspace: memory that an op needs while it runs, kept from one call to the next: a call that needs no more than an
// earlier one did allocates nothing. It never shrinks; whoever calls the op owns it. For one call at a time.
#pragma once

#include <cstddef>
#include <memory>

namespace fastpaged {

class Workspace {
 public:
  // num_bytes aligned for any fundamental type, valid until the next call. Uninitialised, so that pages are touched by
  // who uses them. Throws std::bad_alloc; the workspace is empty then.
  std::byte* reserve(std::size_t num_bytes) {
    if (num_bytes > num_bytes_) {
      memory_.reset();  // first, so that the old and the new need not fit together
      num_bytes_ = 0;
      memory_.reset(new std::byte[num_bytes]);
      num_bytes_ = num_bytes;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t num_bytes_ = 0;
};

}  // namespace fastpaged
