// Booleans from Python: True and False alone, for a number in their place is a mistake.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace fastpaged::bindings {

// Throws TypeError naming the argument.
inline bool bool_arg(const pybind11::object& value, const char* name) {
  if (!PyBool_Check(value.ptr())) {
    throw pybind11::type_error(std::string(name) + " must be True or False, got " + std::string(pybind11::repr(value)));
  }
  return value.is(pybind11::handle(Py_True));
}

}  // namespace fastpaged::bindings
