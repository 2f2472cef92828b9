#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "fastpaged/sampling/exp.h"

namespace fastpaged {
namespace {

float exp_of(float z) {
  return exp_nonpositive(all_lanes(z))[0];
}

TEST_CASE("exp stays within its stated error of the exact value from -87 to 0") {
  const std::uint32_t last = std::bit_cast<std::uint32_t>(-87.0F);
  double worst = 0.0;
  for (std::uint32_t bits = std::bit_cast<std::uint32_t>(-0.0F); bits <= last; bits += 997) {
    const float z = std::bit_cast<float>(bits);
    const double exact = std::exp(static_cast<double>(z));
    worst = std::max(worst, std::fabs(static_cast<double>(exp_of(z)) - exact) / exact);
  }
  CHECK(worst < 0x1p-23);
  CHECK(worst > 0x1p-26);  // float32 cannot be that good: the comparison itself works
}

TEST_CASE("exp is exactly 1 at 0 and exactly 0 below -87") {
  CHECK(exp_of(0.0F) == 1.0F);
  CHECK(exp_of(-0.0F) == 1.0F);
  CHECK(exp_of(-87.0F) > 0.0F);
  CHECK(exp_of(std::nextafter(-87.0F, -100.0F)) == 0.0F);
  CHECK(exp_of(std::numeric_limits<float>::lowest()) == 0.0F);
  CHECK(exp_of(-std::numeric_limits<float>::infinity()) == 0.0F);
}

TEST_CASE("lanes of exp do not see one another") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Lanes mixed = exp_nonpositive(Lanes{-1.5F, nan, -std::numeric_limits<float>::infinity(), -80.0F});
  CHECK(mixed[0] == exp_of(-1.5F));
  CHECK(mixed[2] == 0.0F);
  CHECK(mixed[3] == exp_of(-80.0F));
}

}  // namespace
}  // namespace fastpaged
