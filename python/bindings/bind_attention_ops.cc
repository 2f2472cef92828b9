// The ops around the KV cache, for tests and benchmarks: each takes the fields of its params struct.
#include <pybind11/pybind11.h>

#include "bindings/bind.h"
#include "bindings/handles.h"
#include "bindings/tensor_arg.h"
#include "fastpaged/ops/kv_codes.h"
#include "fastpaged/ops/op_table.h"
#include "fastpaged/ops/params.h"

namespace py = pybind11;

namespace fastpaged::bindings {
namespace {

// A layer of the cache as the ops take it.
TensorView layer_of(const TensorArg& kv_cache, const TensorArg& q) {
  const TensorView& view = kv_cache.view();
  return is_kv_code(view.dtype) ? kv_code_view("kv_cache", view, q.view().shape[2]) : view;
}

void run_rotary_cache_write(CpuDevice& device, const py::object& qkv, const py::object& positions,
                            const py::object& slot_mapping, const py::object& cos_sin, const py::object& kv_cache,
                            const py::object& q, const py::object& q_norm, const py::object& k_norm, float norm_eps,
                            const std::string& kv_cache_dtype) {
  const TensorArg qkv_arg(qkv, "qkv", DType::kFloat32);
  const OptionalTensorArg positions_arg(positions, "positions", DType::kInt32);
  const TensorArg slots_arg(slot_mapping, "slot_mapping", DType::kInt32);
  const OptionalTensorArg cos_sin_arg(cos_sin, "cos_sin", DType::kFloat32);
  const OptionalTensorArg q_norm_arg(q_norm, "q_norm", DType::kFloat32);
  const OptionalTensorArg k_norm_arg(k_norm, "k_norm", DType::kFloat32);
  const TensorArg kv_cache_arg = TensorArg::kv_cache(kv_cache, "kv_cache", kv_cache_dtype, Access::kWrite);
  const TensorArg q_arg = TensorArg::activations(q, "q", Access::kWrite);
  const RotaryCacheWriteParams params{.qkv = qkv_arg.view(),
                                      .positions = positions_arg.view(),
                                      .slot_mapping = slots_arg.view(),
                                      .cos_sin = cos_sin_arg.view(),
                                      .q_norm = q_norm_arg.view(),
                                      .k_norm = k_norm_arg.view(),
                                      .kv_cache = layer_of(kv_cache_arg, q_arg),
                                      .q = q_arg.view(),
                                      .norm_eps = norm_eps};
  const py::gil_scoped_release release;
  device.ops.rotary_cache_write(params, device.pool);
}

void run_paged_attention(CpuDevice& device, const py::object& q, const py::object& kv_cache,
                         const py::object& query_start, const py::object& context_lens, const py::object& block_tables,
                         const py::object& out, float scale, float soft_cap, std::int32_t window,
                         const py::object& alibi_slopes, const std::string& kv_cache_dtype) {
  const TensorArg q_arg = TensorArg::activations(q, "q");
  const TensorArg kv_cache_arg = TensorArg::kv_cache(kv_cache, "kv_cache", kv_cache_dtype, Access::kRead);
  const TensorArg query_start_arg(query_start, "query_start", DType::kInt32);
  const TensorArg context_lens_arg(context_lens, "context_lens", DType::kInt32);
  const TensorArg block_tables_arg(block_tables, "block_tables", DType::kInt32);
  const OptionalTensorArg alibi_slopes_arg(alibi_slopes, "alibi_slopes", DType::kFloat32);
  const TensorArg out_arg = TensorArg::activations(out, "out", Access::kWrite);
  const PagedAttentionParams params{.q = q_arg.view(),
                                    .kv_cache = layer_of(kv_cache_arg, q_arg),
                                    .query_start = query_start_arg.view(),
                                    .context_lens = context_lens_arg.view(),
                                    .block_tables = block_tables_arg.view(),
                                    .alibi_slopes = alibi_slopes_arg.view(),
                                    .out = out_arg.view(),
                                    .scale = scale,
                                    .soft_cap = soft_cap,
                                    .window = window};
  const py::gil_scoped_release release;
  device.ops.paged_attention(params, device.pool);
}

}  // namespace

void bind_attention_ops(py::module_& m) {
  m.def("rotary_cache_write", &run_rotary_cache_write, py::arg("device"), py::arg("qkv"), py::arg("positions"),
        py::arg("slot_mapping"), py::arg("cos_sin"), py::arg("kv_cache"), py::arg("q"), py::arg("q_norm") = py::none(),
        py::arg("k_norm") = py::none(), py::arg("norm_eps") = 0.0F, py::arg("kv_cache_dtype") = "auto");
  m.def("paged_attention", &run_paged_attention, py::arg("device"), py::arg("q"), py::arg("kv_cache"),
        py::arg("query_start"), py::arg("context_lens"), py::arg("block_tables"), py::arg("out"), py::arg("scale"),
        py::arg("soft_cap") = 0.0F, py::arg("window") = 0, py::arg("alibi_slopes") = py::none(),
        py::arg("kv_cache_dtype") = "auto");
}

}  // namespace fastpaged::bindings
