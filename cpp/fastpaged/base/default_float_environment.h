// DefaultFloatEnvironment: round to nearest, denormals kept, no traps, for the lifetime of the object on its thread.
// The thread that claims a tile may have been left otherwise (by the host program, say); the tile's bits must not tell.
#pragma once

#include <cfenv>

namespace fastpaged {

class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t saved_{};
};

}  // namespace fastpaged
