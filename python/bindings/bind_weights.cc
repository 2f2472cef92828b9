// Weights on their way in: GGUF blocks to numbers, rows to the packed layout of an op table.
#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "bindings/bind.h"
#include "bindings/handles.h"
#include "bindings/tensor_arg.h"
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
      m, "PackedLinear", "The weight [out_features, in_features] of a linear layer, in one op table's layout.")
      .def(py::init(&pack), py::arg("device"), py::arg("parts"), py::arg("dtype") = "bfloat16",
           py::arg("gated") = false, py::keep_alive<1, 2>(),
           "Stacks parts [N_i, K] along N and packs them as dtype, 'bfloat16' or 'float32'. gated: the first half of "
           "the "
           "rows are gates, the second the ups they belong to.")
      .def_property_readonly("out_features", &PackedLinear::out_features)
      .def_property_readonly("in_features", &PackedLinear::in_features)
      .def_property_readonly("dtype", [](const PackedLinear& packed) { return name_of(packed.dtype()); })
      .def_property_readonly("gated", &PackedLinear::gated)
      .def_property_readonly("num_bytes", &PackedLinear::num_bytes);

  m.def("dequantize", &dequantize_array, py::arg("device"), py::arg("kind"), py::arg("data"), py::arg("out"),
        "GGUF blocks of `kind` to out, bfloat16 bits or float32; sizes must match.");
}

}  // namespace fastpaged::bindings
