// The ops one by one, for tests and benchmarks. Each takes the fields of its params struct.
#include <pybind11/pybind11.h>

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

void run_embedding(CpuDevice& device, const py::object& token_ids, const py::object& table, const py::object& out) {
  const TensorArg token_ids_arg(token_ids, "token_ids", DType::kInt32);
  const TensorArg table_arg(table, "table", DType::kBFloat16);
  const TensorArg out_arg(out, "out", DType::kFloat32, Access::kWrite);
  const EmbeddingParams params{.token_ids = token_ids_arg.view(), .table = table_arg.view(), .out = out_arg.view()};
  const py::gil_scoped_release release;
  device.ops.embedding(params, device.pool);
}

void run_rms_norm(CpuDevice& device, const py::object& x, const py::object& residual, const py::object& weight,
                  float eps, const py::object& out) {
  const bool adds = !residual.is_none();
  const TensorArg x_arg(x, "x", DType::kFloat32, adds ? Access::kWrite : Access::kRead);
  std::optional<TensorArg> residual_arg;
  if (adds) {
    residual_arg.emplace(residual, "residual", DType::kFloat32);
  }
  const TensorArg weight_arg(weight, "weight", DType::kFloat32);
  const TensorArg out_arg(out, "out", DType::kBFloat16, Access::kWrite);
  const RmsNormParams params{.x = x_arg.view(),
                             .residual = adds ? residual_arg->view() : TensorView{},
                             .weight = weight_arg.view(),
                             .out = out_arg.view(),
                             .eps = eps};
  const py::gil_scoped_release release;
  device.ops.rms_norm(params, device.pool);
}

void run_linear(CpuDevice& device, const py::object& x, const PackedLinear& weight, const py::object& out) {
  const TensorArg x_arg(x, "x", DType::kBFloat16);
  const TensorArg out_arg(out, "out", DType::kFloat32, Access::kWrite);
  const LinearParams params{.x = x_arg.view(), .weight = &weight, .out = out_arg.view()};
  const py::gil_scoped_release release;
  device.ops.linear(params, device.pool);
}

void run_rotary_cache_write(CpuDevice& device, const py::object& qkv, const py::object& positions,
                            const py::object& slot_mapping, const py::object& cos_sin, const py::object& kv_cache,
                            const py::object& q) {
  const TensorArg qkv_arg(qkv, "qkv", DType::kFloat32);
  const TensorArg positions_arg(positions, "positions", DType::kInt32);
  const TensorArg slots_arg(slot_mapping, "slot_mapping", DType::kInt32);
  const TensorArg cos_sin_arg(cos_sin, "cos_sin", DType::kFloat32);
  const TensorArg kv_cache_arg(kv_cache, "kv_cache", DType::kBFloat16, Access::kWrite);
  const TensorArg q_arg(q, "q", DType::kBFloat16, Access::kWrite);
  const RotaryCacheWriteParams params{.qkv = qkv_arg.view(),
                                      .positions = positions_arg.view(),
                                      .slot_mapping = slots_arg.view(),
                                      .cos_sin = cos_sin_arg.view(),
                                      .kv_cache = kv_cache_arg.view(),
                                      .q = q_arg.view()};
  const py::gil_scoped_release release;
  device.ops.rotary_cache_write(params, device.pool);
}

void run_paged_attention(CpuDevice& device, const py::object& q, const py::object& kv_cache,
                         const py::object& query_start, const py::object& context_lens, const py::object& block_tables,
                         const py::object& out, float scale, float soft_cap, const py::object& alibi_slopes,
                         std::int32_t window) {
  const TensorArg q_arg(q, "q", {DType::kBFloat16, DType::kFloat32}, Access::kRead);
  const TensorArg kv_cache_arg(kv_cache, "kv_cache", {DType::kBFloat16, DType::kFloat32}, Access::kRead);
  const TensorArg query_start_arg(query_start, "query_start", DType::kInt32);
  const TensorArg context_lens_arg(context_lens, "context_lens", DType::kInt32);
  const TensorArg block_tables_arg(block_tables, "block_tables", DType::kInt32);
  const TensorArg out_arg(out, "out", {DType::kBFloat16, DType::kFloat32}, Access::kWrite);
  std::optional<TensorArg> slopes_arg;
  if (!alibi_slopes.is_none()) {
    slopes_arg.emplace(alibi_slopes, "alibi_slopes", DType::kFloat32);
  }
  const PagedAttentionParams params{.q = q_arg.view(),
                                    .kv_cache = kv_cache_arg.view(),
                                    .query_start = query_start_arg.view(),
                                    .context_lens = context_lens_arg.view(),
                                    .block_tables = block_tables_arg.view(),
                                    .alibi_slopes = slopes_arg ? slopes_arg->view() : TensorView{},
                                    .out = out_arg.view(),
                                    .scale = scale,
                                    .soft_cap = soft_cap,
                                    .window = window};
  const py::gil_scoped_release release;
  device.ops.paged_attention(params, device.pool);
}

void run_gated_activation(CpuDevice& device, const py::object& gate_up, const std::string& activation,
                          const py::object& out) {
  const TensorArg gate_up_arg(gate_up, "gate_up", DType::kFloat32);
  const TensorArg out_arg(out, "out", DType::kBFloat16, Access::kWrite);
  const GatedActivationParams params{
      .gate_up = gate_up_arg.view(), .out = out_arg.view(), .activation = activation_from_name(activation)};
  const py::gil_scoped_release release;
  device.ops.gated_activation(params, device.pool);
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
  m.def("embedding", &run_embedding, py::arg("device"), py::arg("token_ids"), py::arg("table"), py::arg("out"));
  m.def("rms_norm", &run_rms_norm, py::arg("device"), py::arg("x"), py::arg("residual"), py::arg("weight"),
        py::arg("eps"), py::arg("out"));
  m.def("linear", &run_linear, py::arg("device"), py::arg("x"), py::arg("weight"), py::arg("out"));
  m.def("rotary_cache_write", &run_rotary_cache_write, py::arg("device"), py::arg("qkv"), py::arg("positions"),
        py::arg("slot_mapping"), py::arg("cos_sin"), py::arg("kv_cache"), py::arg("q"));
  m.def("paged_attention", &run_paged_attention, py::arg("device"), py::arg("q"), py::arg("kv_cache"),
        py::arg("query_start"), py::arg("context_lens"), py::arg("block_tables"), py::arg("out"), py::arg("scale"),
        py::arg("soft_cap") = 0.0F, py::arg("alibi_slopes") = py::none(), py::arg("window") = 0);
  m.def("gated_activation", &run_gated_activation, py::arg("device"), py::arg("gate_up"), py::arg("activation"),
        py::arg("out"));
  m.def("gather_rows", &run_gather_rows, py::arg("device"), py::arg("x"), py::arg("rows"), py::arg("out"));
}

}  // namespace fastpaged::bindings
