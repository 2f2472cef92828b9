// Weights on their way in: GGUF blocks to numbers, rows to the packed layout of an op table.
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/handles.h"
#include "bindings/tensor_arg.h"
#include "fastpaged/base/check.h"
#include "fastpaged/ops/dequantize.h"
#include "fastpaged/ops/packed_linear.h"
#include "fastpaged/ops/shape_check.h"

namespace py = pybind11;

namespace fastpaged::bindings {
namespace {

std::shared_ptr<PackedLinear> pack(CpuDevice& device, const py::sequence& parts, const std::string& dtype, bool gated) {
  const DType packed_dtype = activation_dtype(dtype);
  std::vector<TensorArg> args;
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string name = "parts[" + std::to_string(i) + "]";
    args.push_back(TensorArg::activations(parts[i], name.c_str()));
    views.push_back(args.back().view());
  }
  const py::gil_scoped_release release;
  const auto pack_parts = gated ? device.ops.pack_gated_linear : device.ops.pack_linear;
  return std::make_shared<PackedLinear>(pack_parts(views, packed_dtype, device.pool));
}

// Of a weight of this size as the device packs it.
std::size_t bytes_when_packed(const CpuDevice& device, std::int64_t out_features, std::int64_t in_features,
                              const std::string& dtype, bool gated) {
  const DType packed_dtype = activation_dtype(dtype);
  constexpr std::int64_t kMaxSize = std::int64_t{1} << 30;
  require(0 < out_features && out_features <= kMaxSize && 0 < in_features && in_features <= kMaxSize, [&] {
    return "out_features and in_features must lie in [1, 2^30], got " + std::to_string(out_features) + " and " +
           std::to_string(in_features);
  });
  require(!gated || out_features % 2 == 0, [&] {
    return "out_features of a gated weight must be even, as many gates as ups, got " + std::to_string(out_features);
  });
  return device.ops.packed_bytes(out_features, in_features, packed_dtype, gated);
}

// The buffer is let go with the last user of the weight, whichever thread that is in.
std::shared_ptr<PackedLinear> from_packed(CpuDevice& device, const py::object& data, std::int64_t out_features,
                                          std::int64_t in_features, const std::string& dtype, bool gated) {
  const std::size_t num_bytes = bytes_when_packed(device, out_features, in_features, dtype, gated);
  auto buffer = std::make_unique<BytesArg>(data, "data");
  const std::span<const std::byte> bytes = buffer->bytes();
  require(bytes.size() == num_bytes, [&] {
    return "data must have the " + std::to_string(num_bytes) + " bytes of the packed weight, got " +
           std::to_string(bytes.size());
  });
  require(reinterpret_cast<std::uintptr_t>(bytes.data()) % kPackedAlignment == 0,
          [] { return "data must lie at an address that is a multiple of 64"; });
  std::shared_ptr<const std::byte> shared(bytes.data(), [held = buffer.release()](const std::byte*) {
    const py::gil_scoped_acquire acquire;
    delete held;
  });
  return std::make_shared<PackedLinear>(out_features, in_features, activation_dtype(dtype), num_bytes, device.ops.isa,
                                        gated, std::move(shared));
}

py::buffer_info packed_bytes(const PackedLinear& packed) {
  return {reinterpret_cast<const std::uint8_t*>(packed.data()), static_cast<py::ssize_t>(packed.num_bytes()),
          /*readonly=*/true};
}

void dequantize_array(CpuDevice& device, const std::string& kind, const py::object& data, const py::object& out) {
  const BytesArg bytes(data, "data");
  const TensorArg numbers = TensorArg::activations(out, "out", Access::kWrite);
  const GgufKind gguf_kind = gguf_kind_from_name(kind);
  const py::gil_scoped_release release;
  dequantize(gguf_kind, bytes.bytes(), numbers.view(), device.pool);
}

}  // namespace

void bind_weights(py::module_& m) {
  py::class_<PackedLinear, std::shared_ptr<PackedLinear>>(
      m, "PackedLinear", py::buffer_protocol(),
      "The weight [out_features, in_features] of a linear layer, in one op table's layout. As a buffer: its bytes.")
      .def(py::init(&pack), py::arg("device"), py::arg("parts"), py::arg("dtype") = "bfloat16",
           py::arg("gated") = false, py::keep_alive<1, 2>(),
           "Stacks parts [N_i, K] along N and packs them as dtype, 'bfloat16' or 'float32'. gated: the first half of "
           "the rows are gates, the second the ups they belong to.")
      .def_static("from_packed", &from_packed, py::arg("device").none(false), py::arg("data"), py::kw_only(),
                  py::arg("out_features"), py::arg("in_features"), py::arg("dtype"), py::arg("gated"),
                  "What was packed before, by a device of the same weight_layout; data, its bytes, are not copied.")
      .def_buffer(&packed_bytes)
      .def_property_readonly("out_features", &PackedLinear::out_features)
      .def_property_readonly("in_features", &PackedLinear::in_features)
      .def_property_readonly("dtype", [](const PackedLinear& packed) { return name_of(packed.dtype()); })
      .def_property_readonly("gated", &PackedLinear::gated)
      .def_property_readonly("num_bytes", &PackedLinear::num_bytes);

  m.def("packed_bytes", &bytes_when_packed, py::arg("device").none(false), py::kw_only(), py::arg("out_features"),
        py::arg("in_features"), py::arg("dtype"), py::arg("gated"),
        "How many bytes the device packs a weight of this size into, padding included.");
  m.def("dequantize", &dequantize_array, py::arg("device"), py::arg("kind"), py::arg("data"), py::arg("out"),
        "GGUF blocks of `kind` to out, bfloat16 bits or float32; sizes must match.");
}

}  // namespace fastpaged::bindings
