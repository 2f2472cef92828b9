// Two ways to fail, kept apart:
//   require(...)   the caller did something wrong  -> std::invalid_argument -> ValueError in Python
//   invariant(...) fastpaged did something wrong   -> InvariantError with its source location -> RuntimeError
// What may simply happen (no free block, queue full) is neither: it is a [[nodiscard]] return value.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fastpaged {

class InvariantError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] inline void throw_invariant(std::string_view what, const std::source_location& where) {
  throw InvariantError(std::string(where.file_name()) + ":" + std::to_string(where.line()) +
                       ": broken invariant: " + std::string(what));
}

inline void invariant(bool holds, std::string_view what,
                      const std::source_location& where = std::source_location::current()) {
  if (!holds) [[unlikely]] {
    throw_invariant(what, where);
  }
}

// The message names the argument, what was given and what is allowed:
//   require(n > 0, [&] { return "num_blocks must be > 0, got " + std::to_string(n); });
template <typename Message>
void require(bool holds, Message&& message) {
  if (!holds) [[unlikely]] {
    throw std::invalid_argument(message());
  }
}

}  // namespace fastpaged
