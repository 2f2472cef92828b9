#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "fastpaged/ops/op_table.h"

namespace fastpaged {
namespace {

TEST_CASE("tables are found by name, and every supported one is whole") {
  for (const std::string& isa : supported_isas()) {
    const OpTable& ops = op_table(isa);
    CHECK(ops.isa == isa);
    CHECK((ops.pack_linear != nullptr));
    CHECK((ops.embedding != nullptr));
    CHECK((ops.rms_norm != nullptr));
    CHECK((ops.linear != nullptr));
    CHECK((ops.rotary_cache_write != nullptr));
    CHECK((ops.paged_attention != nullptr));
    CHECK((ops.pack_gated_linear != nullptr));
    CHECK((ops.packed_bytes != nullptr));
    CHECK((ops.gather_rows != nullptr));
  }
}

TEST_CASE("a table this CPU lacks is refused, naming those it has") {
  const std::vector<std::string> supported = supported_isas();
  std::vector<std::string> refused = {"", "AVX512", "neon"};
  for (const std::string& isa : known_isas()) {
    if (std::find(supported.begin(), supported.end(), isa) == supported.end()) {
      refused.push_back(isa);
    }
  }
  for (const std::string& isa : refused) {
    CAPTURE(isa);
    CHECK_THROWS_AS(op_table(isa), std::invalid_argument);
  }
}

}  // namespace
}  // namespace fastpaged
