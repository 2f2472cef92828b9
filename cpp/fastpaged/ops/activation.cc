#include <array>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "fastpaged/ops/params.h"

namespace fastpaged {
namespace {

constexpr std::array<std::pair<std::string_view, Activation>, 4> kNames{{{"silu", Activation::kSilu},
                                                                         {"gelu", Activation::kGelu},
                                                                         {"gelu_tanh", Activation::kGeluTanh},
                                                                         {"relu", Activation::kRelu}}};

}  // namespace

Activation activation_from_name(std::string_view name) {
  std::string allowed;
  for (const auto& [known, activation] : kNames) {
    if (name == known) {
      return activation;
    }
    allowed += (allowed.empty() ? "'" : ", '") + std::string(known) + "'";
  }
  throw std::invalid_argument("activation must be one of " + allowed + ", got '" + std::string(name) + "'");
}

const char* name_of(Activation activation) {
  for (const auto& [known, value] : kNames) {
    if (value == activation) {
      return known.data();
    }
  }
  return "?";
}

}  // namespace fastpaged
