// Arrays from Python, taken through the buffer protocol: NumPy's way in, with no copy and no NumPy at build time.
//
// TensorArg holds the buffer, and with it the memory, for as long as it lives. bfloat16 has no buffer format and
// travels as its bits: uint16. Errors are ValueErrors that name the argument.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "fastpaged/base/check.h"
#include "fastpaged/base/tensor_view.h"
#include "fastpaged/ops/kv_codes.h"

namespace fastpaged::bindings {

enum class Access : std::uint8_t { kRead, kWrite };

// Owns a Py_buffer. Made and destroyed with the GIL held.
class BufferHandle {
 public:
  BufferHandle(pybind11::handle object, const char* name, Access access) {
    const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (access == Access::kWrite ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object.ptr(), &buffer_, flags) != 0) {
      const bool refused = PyErr_ExceptionMatches(PyExc_TypeError) != 0 ||
                           PyErr_ExceptionMatches(PyExc_BufferError) != 0 ||
                           PyErr_ExceptionMatches(PyExc_ValueError) != 0;
      if (!refused) {
        throw pybind11::error_already_set();
      }
      PyErr_Clear();
      throw pybind11::value_error(
          std::string(name) + " must be " + (access == Access::kWrite ? "a writable array" : "an array") + ", got " +
          (PyObject_CheckBuffer(object.ptr()) != 0 ? "a read-only " : "") + Py_TYPE(object.ptr())->tp_name);
    }
  }
  ~BufferHandle() { release(); }
  BufferHandle(const BufferHandle&) = delete;
  BufferHandle& operator=(const BufferHandle&) = delete;
  BufferHandle(BufferHandle&& other) noexcept : buffer_(std::exchange(other.buffer_, Py_buffer{})) {}
  BufferHandle& operator=(BufferHandle&& other) noexcept {
    if (this != &other) {
      release();
      buffer_ = std::exchange(other.buffer_, Py_buffer{});
    }
    return *this;
  }

  [[nodiscard]] const Py_buffer& get() const { return buffer_; }

 private:
  void release() {
    if (buffer_.obj != nullptr) {
      PyBuffer_Release(&buffer_);
    }
  }
  Py_buffer buffer_{};
};

inline const char* python_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "uint16 (bfloat16 bits)";
    case DType::kInt32:
      return "int32";
    case DType::kFp8E4M3:
    case DType::kFp8E5M2:
    case DType::kInt8:
      return "uint8 (8-bit codes and their scales)";
  }
  return "?";
}

namespace detail {

// Whether the struct-module format says `dtype`, in native byte order.
inline bool matches(const Py_buffer& buffer, DType dtype) {
  if (buffer.format == nullptr || buffer.itemsize != static_cast<Py_ssize_t>(size_of(dtype))) {
    return false;
  }
  std::string_view format = buffer.format;
  if (!format.empty() && (format.front() == '@' || format.front() == '=' || format.front() == '<')) {
    format.remove_prefix(1);
  }
  switch (dtype) {
    case DType::kFloat32:
      return format == "f";
    case DType::kBFloat16:
      return format == "H";
    case DType::kInt32:
      return format == "i" || format == "l";
    case DType::kFp8E4M3:
    case DType::kFp8E5M2:
    case DType::kInt8:
      return format == "B";
  }
  return false;
}

}  // namespace detail

class TensorArg {
 public:
  // Throws ValueError unless object is an array of one of `dtypes`, aligned, of at most TensorView::kMaxRank axes.
  TensorArg(pybind11::handle object, const char* name, std::initializer_list<DType> dtypes, Access access)
      : buffer_(object, name, access) {
    const Py_buffer& buffer = buffer_.get();
    if (buffer.ndim > TensorView::kMaxRank) {
      throw pybind11::value_error(std::string(name) + " must have at most " + std::to_string(TensorView::kMaxRank) +
                                  " axes, got " + std::to_string(buffer.ndim));
    }
    view_.dtype = pick_dtype(name, dtypes);
    view_.data = buffer.buf;
    view_.rank = buffer.ndim;
    for (int axis = 0; axis < buffer.ndim; ++axis) {
      const Py_ssize_t stride = buffer.strides[axis];
      if (stride % buffer.itemsize != 0) {
        throw pybind11::value_error(std::string(name) + " has a stride that is no multiple of its item size");
      }
      view_.shape[axis] = buffer.shape[axis];
      view_.strides[axis] = stride / buffer.itemsize;
    }
    if (reinterpret_cast<std::uintptr_t>(buffer.buf) % static_cast<std::uintptr_t>(buffer.itemsize) != 0) {
      throw pybind11::value_error(std::string(name) + " is not aligned to its item size");
    }
  }
  TensorArg(pybind11::handle object, const char* name, DType dtype, Access access = Access::kRead)
      : TensorArg(object, name, {dtype}, access) {}

  // Of either activation dtype: which of them fits is for the op to say.
  static TensorArg activations(pybind11::handle object, const char* name, Access access = Access::kRead) {
    return {object, name, {DType::kBFloat16, DType::kFloat32}, access};
  }

  // Of the KV cache: activations where kv_cache_dtype is "auto", else the bytes of an 8-bit dtype.
  static TensorArg kv_cache(pybind11::handle object, const char* name, const std::string& kv_cache_dtype,
                            Access access) {
    return kv_cache_dtype == "auto" ? activations(object, name, access)
                                    : TensorArg(object, name, kv_code_dtype(kv_cache_dtype), access);
  }

  [[nodiscard]] const TensorView& view() const { return view_; }

 private:
  [[nodiscard]] DType pick_dtype(const char* name, std::initializer_list<DType> dtypes) const {
    std::string allowed;
    for (const DType dtype : dtypes) {
      if (detail::matches(buffer_.get(), dtype)) {
        return dtype;
      }
      allowed += (allowed.empty() ? "" : " or ") + std::string(python_name(dtype));
    }
    const char* format = buffer_.get().format;
    throw pybind11::value_error(std::string(name) + " must be an array of " + allowed + ", got buffer format '" +
                                (format == nullptr ? "" : format) + "'");
  }

  BufferHandle buffer_;
  TensorView view_;
};

// An argument that may be None: its view is empty() then.
class OptionalTensorArg {
 public:
  OptionalTensorArg(pybind11::handle object, const char* name, DType dtype) {
    if (!object.is_none()) {
      arg_.emplace(object, name, dtype);
    }
  }

  [[nodiscard]] bool given() const { return arg_.has_value(); }
  [[nodiscard]] TensorView view() const { return arg_ ? arg_->view() : TensorView{}; }

 private:
  std::optional<TensorArg> arg_;
};

// "float32" or "bfloat16". Throws ValueError.
inline DType activation_dtype(const std::string& name) {
  require(name == "float32" || name == "bfloat16",
          [&] { return "dtype must be 'float32' or 'bfloat16', got '" + name + "'"; });
  return name == "float32" ? DType::kFloat32 : DType::kBFloat16;
}

// A contiguous array of raw bytes.
class BytesArg {
 public:
  BytesArg(pybind11::handle object, const char* name) : buffer_(object, name, Access::kRead) {
    const Py_buffer& buffer = buffer_.get();
    if (buffer.itemsize != 1 || PyBuffer_IsContiguous(&buffer, 'C') == 0) {
      throw pybind11::value_error(std::string(name) + " must be a contiguous array of uint8");
    }
  }
  [[nodiscard]] std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(buffer_.get().buf), static_cast<std::size_t>(buffer_.get().len)};
  }

 private:
  BufferHandle buffer_;
};

}  // namespace fastpaged::bindings
