// Arena: one piece of memory for all of a graph's buffers. Zeroed, and lazily committed: a page costs memory from
// the first time it is touched, so that a budget for 2048 tokens is free until 2048 tokens come.
#pragma once

#include <cstddef>

namespace fastpaged {

class Arena {
 public:
  static constexpr std::size_t kAlignment = 64;

  Arena() = default;
  // Throws std::bad_alloc if the address space has no room for num_bytes.
  explicit Arena(std::size_t num_bytes);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }  // aligned to a page, hence to kAlignment
  [[nodiscard]] std::size_t num_bytes() const { return num_bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t num_bytes_ = 0;
};

}  // namespace fastpaged
