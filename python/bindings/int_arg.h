// Integers from Python: anything with __index__, range-checked. pybind11's own conversion calls a number that is too
// large a TypeError and does not say which argument it was.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace fastpaged::bindings {

// For a conversion that has failed: forgets a TypeError, which the caller says better, and passes on all else, as
// KeyboardInterrupt and MemoryError.
inline void clear_type_error() {
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) {
    throw pybind11::error_already_set();
  }
  PyErr_Clear();
}

// Throws TypeError for no integer, ValueError outside Int's range from `minimum` on; both name the argument.
template <typename Int>
Int int_arg(pybind11::handle value, const std::string& name, Int minimum = std::numeric_limits<Int>::min()) {
  const auto index = pybind11::reinterpret_steal<pybind11::object>(PyNumber_Index(value.ptr()));
  if (!index) {
    clear_type_error();
    throw pybind11::type_error(name + " must be an integer, got " + Py_TYPE(value.ptr())->tp_name);
  }
  bool fits = false;
  Int result{};
  if constexpr (std::numeric_limits<Int>::is_signed) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    fits = overflow == 0 && std::in_range<Int>(number);
    result = static_cast<Int>(number);
  } else {
    const unsigned long long number = PyLong_AsUnsignedLongLong(index.ptr());
    const bool failed = PyErr_Occurred() != nullptr;
    if (failed && PyErr_ExceptionMatches(PyExc_OverflowError) == 0) {
      throw pybind11::error_already_set();
    }
    PyErr_Clear();
    fits = !failed && std::in_range<Int>(number);
    result = static_cast<Int>(number);
  }
  if (!fits || result < minimum) {
    throw pybind11::value_error(name + " must be in [" + std::to_string(minimum) + ", " +
                                std::to_string(std::numeric_limits<Int>::max()) + "], got " +
                                std::string(pybind11::str(index)));
  }
  return result;
}

// Calls each(item, "name[i]" as a function) for the items of any Python sequence.
template <typename Each>
void for_each_item(pybind11::handle sequence, const std::string& name, Each&& each) {
  const auto items = pybind11::reinterpret_steal<pybind11::object>(PySequence_Fast(sequence.ptr(), ""));
  if (!items) {
    clear_type_error();
    throw pybind11::type_error(name + " must be a sequence of integers, got " + Py_TYPE(sequence.ptr())->tp_name);
  }
  // The size is read anew each time: an item's __index__ may shorten a list.
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.ptr()); ++i) {
    const auto item = pybind11::reinterpret_borrow<pybind11::object>(PySequence_Fast_GET_ITEM(items.ptr(), i));
    each(item, [&] { return name + "[" + std::to_string(i) + "]"; });
  }
}

// Token ids: integers in [0, 2147483647].
inline std::vector<std::int32_t> token_ids_arg(pybind11::handle sequence, const std::string& name) {
  std::vector<std::int32_t> token_ids;
  for_each_item(sequence, name, [&](const pybind11::object& item, auto&& item_name) {
    if (PyLong_CheckExact(item.ptr())) {  // the usual case, without building a name
      int overflow = 0;
      const long long number = PyLong_AsLongLongAndOverflow(item.ptr(), &overflow);
      if (overflow == 0 && number >= 0 && std::in_range<std::int32_t>(number)) {
        token_ids.push_back(static_cast<std::int32_t>(number));
        return;
      }
    }
    token_ids.push_back(int_arg<std::int32_t>(item, item_name(), 0));
  });
  return token_ids;
}

}  // namespace fastpaged::bindings
