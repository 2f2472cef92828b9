// How much more than usual is proven: the environment's FASTPAGED_PROOF_SCALE, 1 unless set.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>

namespace fastpaged::test {

inline int proof_scale() {
  const char* scale = std::getenv("FASTPAGED_PROOF_SCALE");
  return scale == nullptr ? 1 : std::max(1, std::stoi(scale));
}

}  // namespace fastpaged::test
