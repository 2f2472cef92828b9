// PreemptionMode by name.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "fastpaged/base/check.h"
#include "fastpaged/scheduler/scheduler_policy.h"

namespace fastpaged::bindings {

inline const char* name_of(PreemptionMode mode) {
  switch (mode) {
    case PreemptionMode::kRecompute:
      return "recompute";
    case PreemptionMode::kSwap:
      return "swap";
    case PreemptionMode::kByBranches:
      return "by_branches";
    case PreemptionMode::kAuto:
      return "auto";
  }
  return "";
}

// Throws TypeError for no string, ValueError for no mode's name; both name the argument.
inline PreemptionMode preemption_mode_arg(const pybind11::object& value, const std::string& name) {
  if (!pybind11::isinstance<pybind11::str>(value)) {
    throw pybind11::type_error(name + " must be a string, got " + Py_TYPE(value.ptr())->tp_name);
  }
  const auto given = pybind11::repr(value).cast<std::string>();
  for (const auto mode :
       {PreemptionMode::kRecompute, PreemptionMode::kSwap, PreemptionMode::kByBranches, PreemptionMode::kAuto}) {
    if (value.equal(pybind11::str(name_of(mode)))) {
      return mode;
    }
  }
  throw pybind11::value_error(name + " must be 'recompute', 'swap', 'by_branches' or 'auto', got " + given);
}

}  // namespace fastpaged::bindings
