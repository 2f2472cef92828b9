// The op tables of this build, best first.
#pragma once

#include <span>

#include "fastpaged/ops/op_table.h"

namespace fastpaged {

struct NamedTable {
  OpTable table;
  bool (*supported)();  // by this CPU and this process
};

std::span<const NamedTable> all_tables();

}  // namespace fastpaged
