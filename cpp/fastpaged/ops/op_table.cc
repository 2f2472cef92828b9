#include "fastpaged/ops/op_table.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "fastpaged/ops/tables.h"

namespace fastpaged {
namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

// "NAME must be one of ..., which this CPU supports; got 'foo' (known: ...)", where `isa` is none of them.
const NamedTable& find_supported(std::string_view name, std::string_view isa) {
  for (const NamedTable& entry : all_tables()) {
    if (isa == entry.table.isa && entry.supported()) {
      return entry;
    }
  }
  throw std::invalid_argument(std::string(name) + " must be one this CPU supports (" + joined(supported_isas()) +
                              "), got '" + std::string(isa) + "' (this build knows " + joined(known_isas()) + ")");
}

}  // namespace

std::vector<std::string> known_isas() {
  std::vector<std::string> names;
  for (const NamedTable& entry : all_tables()) {
    names.emplace_back(entry.table.isa);
  }
  return names;
}

std::vector<std::string> supported_isas() {
  std::vector<std::string> names;
  for (const NamedTable& entry : all_tables()) {
    if (entry.supported()) {
      names.emplace_back(entry.table.isa);
    }
  }
  return names;
}

const OpTable& op_table(std::string_view isa) {
  return find_supported("isa", isa).table;
}

std::string default_isa() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing here writes the environment
  const char* chosen = std::getenv("FASTPAGED_ISA");
  if (chosen != nullptr && *chosen != '\0') {
    return find_supported("FASTPAGED_ISA", chosen).table.isa;
  }
  return supported_isas().front();
}

}  // namespace fastpaged
