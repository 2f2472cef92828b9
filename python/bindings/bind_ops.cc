// The ops one by one, for tests and benchmarks: each takes the fields of its params struct. Attention is in
// bind_attention_ops.cc.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "bindings/bind.h"
#include "bindings/handles.h"
#include "bindings/tensor_arg.h"
#include "fastpaged/ops/op_table.h"
#include "fastpaged/ops/packed_linear.h"
#include "fastpaged/ops/params.h"

namespace py = pybind11;

namespace fastpaged::bindings {
namespace {

void run_embedding(CpuDevice& device, const py::object& token_ids, const py::object& table, const py::object& out,
                   const py::object& positions, const py::object& position_table, float scale) {
  const TensorArg token_ids_arg(token_ids, "token_ids", DType::kInt32);
  const OptionalTensorArg positions_arg(positions, "positions", DType::kInt32);
  const TensorArg table_arg = TensorArg::activations(table, "table");
  const OptionalTensorArg position_table_arg(position_table, "position_table", DType::kFloat32);
  const TensorArg out_arg(out, "out", DType::kFloat32, Access::kWrite);
  const EmbeddingParams params{.token_ids = token_ids_arg.view(),
                               .positions = positions_arg.view(),
                               .table = table_arg.view(),
                               .position_table = position_table_arg.view(),
                               .out = out_arg.view(),
                               .scale = scale};
  const py::gil_scoped_release release;
  device.ops.embedding(params, device.pool);
}

// Written in place if something is added to it.
TensorArg norm_input(const py::object& x, const OptionalTensorArg& residual) {
  return {x, "x", DType::kFloat32, residual.given() ? Access::kWrite : Access::kRead};
}

void run_rms_norm(CpuDevice& device, const py::object& x, const py::object& residual, const py::object& weight,
                  float eps, const py::object& out) {
  const OptionalTensorArg residual_arg(residual, "residual", DType::kFloat32);
  const TensorArg x_arg = norm_input(x, residual_arg);
  const TensorArg weight_arg(weight, "weight", DType::kFloat32);
  const TensorArg out_arg = TensorArg::activations(out, "out", Access::kWrite);
  const RmsNormParams params{.x = x_arg.view(),
                             .residual = residual_arg.view(),
                             .weight = weight_arg.view(),
                             .out = out_arg.view(),
                             .eps = eps};
  const py::gil_scoped_release release;
  device.ops.rms_norm(params, device.pool);
}

void run_layer_norm(CpuDevice& device, const py::object& x, const py::object& residual, const py::object& weight,
                    const py::object& bias, float eps, const py::object& out) {
  const OptionalTensorArg residual_arg(residual, "residual", DType::kFloat32);
  const TensorArg x_arg = norm_input(x, residual_arg);
  const TensorArg weight_arg(weight, "weight", DType::kFloat32);
  const OptionalTensorArg bias_arg(bias, "bias", DType::kFloat32);
  const TensorArg out_arg = TensorArg::activations(out, "out", Access::kWrite);
  const LayerNormParams params{.x = x_arg.view(),
                               .residual = residual_arg.view(),
                               .weight = weight_arg.view(),
                               .bias = bias_arg.view(),
                               .out = out_arg.view(),
                               .eps = eps};
  const py::gil_scoped_release release;
  device.ops.layer_norm(params, device.pool);
}

void run_linear(CpuDevice& device, const py::object& x, const PackedLinear& weight, const py::object& out,
                const py::object& bias, const std::optional<std::string>& activation, bool adds) {
  const TensorArg x_arg = TensorArg::activations(x, "x");
  const OptionalTensorArg bias_arg(bias, "bias", DType::kFloat32);
  const TensorArg out_arg = TensorArg::activations(out, "out", Access::kWrite);
  const LinearParams params{.x = x_arg.view(),
                            .weight = &weight,
                            .bias = bias_arg.view(),
                            .out = out_arg.view(),
                            .activation = activation_of(activation),
                            .adds = adds};
  const py::gil_scoped_release release;
  device.ops.linear(params, device.pool);
}

void run_soft_cap(CpuDevice& device, const py::object& x, float cap) {
  const TensorArg x_arg(x, "x", DType::kFloat32, Access::kWrite);
  const SoftCapParams params{.x = x_arg.view(), .cap = cap};
  const py::gil_scoped_release release;
  device.ops.soft_cap(params, device.pool);
}

void run_add(CpuDevice& device, const py::object& x, const py::object& y) {
  const TensorArg x_arg(x, "x", DType::kFloat32, Access::kWrite);
  const TensorArg y_arg(y, "y", DType::kFloat32);
  const AddParams params{.x = x_arg.view(), .y = y_arg.view()};
  const py::gil_scoped_release release;
  device.ops.add(params, device.pool);
}

void run_gather_rows(CpuDevice& device, const py::object& x, const py::object& rows, const py::object& out) {
  const TensorArg x_arg(x, "x", DType::kFloat32);
  const TensorArg rows_arg(rows, "rows", DType::kInt32);
  const TensorArg out_arg(out, "out", DType::kFloat32, Access::kWrite);
  const GatherRowsParams params{.x = x_arg.view(), .rows = rows_arg.view(), .out = out_arg.view()};
  const py::gil_scoped_release release;
  device.ops.gather_rows(params, device.pool);
}

}  // namespace

void bind_ops(py::module_& m) {
  m.def("embedding", &run_embedding, py::arg("device"), py::arg("token_ids"), py::arg("table"), py::arg("out"),
        py::arg("positions") = py::none(), py::arg("position_table") = py::none(), py::arg("scale") = 1.0F);
  m.def("rms_norm", &run_rms_norm, py::arg("device"), py::arg("x"), py::arg("residual"), py::arg("weight"),
        py::arg("eps"), py::arg("out"));
  m.def("layer_norm", &run_layer_norm, py::arg("device"), py::arg("x"), py::arg("residual"), py::arg("weight"),
        py::arg("bias"), py::arg("eps"), py::arg("out"));
  m.def("linear", &run_linear, py::arg("device"), py::arg("x"), py::arg("weight"), py::arg("out"),
        py::arg("bias") = py::none(), py::arg("activation") = py::none(), py::arg("adds") = false);
  m.def("soft_cap", &run_soft_cap, py::arg("device"), py::arg("x"), py::arg("cap"));
  m.def("add", &run_add, py::arg("device"), py::arg("x"), py::arg("y"));
  m.def("gather_rows", &run_gather_rows, py::arg("device"), py::arg("x"), py::arg("rows"), py::arg("out"));
}

}  // namespace fastpaged::bindings
