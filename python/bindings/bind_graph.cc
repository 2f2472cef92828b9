// ModelGraph: recorded from Python once, then run every step without it.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/bind.h"
#include "bindings/handles.h"
#include "bindings/step_thread.h"
#include "bindings/tensor_arg.h"
#include "fastpaged/base/check.h"
#include "fastpaged/graph/model_graph.h"
#include "fastpaged/ops/packed_linear.h"
#include "fastpaged/ops/params.h"
#include "fastpaged/ops/shape_check.h"

namespace py = pybind11;

namespace fastpaged::bindings {
namespace {

RowKind row_kind(const std::string& rows) {
  require(rows == "tokens" || rows == "samples",
          [&] { return "rows must be 'tokens' or 'samples', got '" + rows + "'"; });
  return rows == "tokens" ? RowKind::kTokens : RowKind::kSamples;
}

// A ModelGraph with all that it points to: the device, the weights, the KV cache. They are let go with the graph.
class GraphHandle {
 public:
  GraphHandle(std::shared_ptr<CpuDevice> device, const std::string& dtype)
      : device_(std::move(device)), graph_(device_->ops, device_->pool, activation_dtype(dtype)) {}

  BufferId buffer(const std::string& rows, std::int64_t cols, const std::string& dtype) {
    return graph_.buffer(row_kind(rows), cols, activation_dtype(dtype));
  }
  void embedding(const py::object& table, BufferId out, const py::object& position_table, float scale) {
    TensorArg table_arg = TensorArg::activations(table, "table");
    OptionalTensorArg position_arg(position_table, "position_table", DType::kFloat32);
    graph_.embedding(table_arg.view(), position_arg.view(), scale, out);
    keep(std::move(table_arg));
    keep(std::move(position_arg));
  }
  void rms_norm(BufferId x, std::optional<BufferId> residual, const py::object& weight, float eps, BufferId out) {
    TensorArg weight_arg(weight, "weight", DType::kFloat32);
    graph_.rms_norm(x, residual ? &*residual : nullptr, weight_arg.view(), eps, out);
    keep(std::move(weight_arg));
  }
  void layer_norm(BufferId x, std::optional<BufferId> residual, const py::object& weight, const py::object& bias,
                  float eps, BufferId out) {
    TensorArg weight_arg(weight, "weight", DType::kFloat32);
    OptionalTensorArg bias_arg(bias, "bias", DType::kFloat32);
    graph_.layer_norm(x, residual ? &*residual : nullptr, weight_arg.view(), bias_arg.view(), eps, out);
    keep(std::move(weight_arg));
    keep(std::move(bias_arg));
  }
  void linear(BufferId x, const std::shared_ptr<PackedLinear>& weight, BufferId out, const py::object& bias,
              const std::optional<std::string>& activation) {
    OptionalTensorArg bias_arg(bias, "bias", DType::kFloat32);
    graph_.linear(x, *weight, bias_arg.view(), out, activation_of(activation));
    weights_.push_back(weight);
    keep(std::move(bias_arg));
  }
  void rotary_cache_write(BufferId qkv, std::int32_t layer, BufferId q, std::int64_t num_kv_heads,
                          std::int64_t head_dim, const py::object& cos_sin, const py::object& q_norm,
                          const py::object& k_norm, float norm_eps) {
    OptionalTensorArg cos_sin_arg(cos_sin, "cos_sin", DType::kFloat32);
    OptionalTensorArg q_norm_arg(q_norm, "q_norm", DType::kFloat32);
    OptionalTensorArg k_norm_arg(k_norm, "k_norm", DType::kFloat32);
    const RotaryOptions options{
        .cos_sin = cos_sin_arg.view(), .q_norm = q_norm_arg.view(), .k_norm = k_norm_arg.view(), .norm_eps = norm_eps};
    graph_.rotary_cache_write(qkv, layer, num_kv_heads, head_dim, options, q);
    keep(std::move(cos_sin_arg));
    keep(std::move(q_norm_arg));
    keep(std::move(k_norm_arg));
  }
  void paged_attention(BufferId q, std::int32_t layer, BufferId out, float scale, float soft_cap, std::int32_t window,
                       const py::object& alibi_slopes) {
    OptionalTensorArg slopes_arg(alibi_slopes, "alibi_slopes", DType::kFloat32);
    const AttentionOptions options{
        .scale = scale, .soft_cap = soft_cap, .window = window, .alibi_slopes = slopes_arg.view()};
    graph_.paged_attention(q, layer, options, out);
    keep(std::move(slopes_arg));
  }
  void soft_cap(BufferId x, float cap) { graph_.soft_cap(x, cap); }
  void add(BufferId x, BufferId y) { graph_.add(x, y); }
  void gather_rows(BufferId x, BufferId out) { graph_.gather_rows(x, out); }

  void finalize(BufferId output, std::int64_t max_num_tokens, std::int64_t max_num_samples) {
    graph_.finalize(output, max_num_tokens, max_num_samples);
  }
  void bind_kv_cache(const py::object& kv_cache, const std::string& kv_cache_dtype) {
    TensorArg arg = TensorArg::kv_cache(kv_cache, "kv_cache", kv_cache_dtype, Access::kWrite);
    graph_.bind_kv_cache(arg.view());
    kv_cache_ = std::move(arg);
  }
  void run(const BatchHandle& batch) {
    const py::gil_scoped_release release;
    graph_.run(batch.batch);
  }
  // Runs the batch and samples its rows on `thread`, which keeps the three alive that it works on.
  static void start(const py::object& self, StepThread& thread, const py::object& sampler, const py::object& batch) {
    auto& graph = self.cast<GraphHandle&>().graph_;
    auto& device_sampler = sampler.cast<DeviceSampler&>();
    thread.start({self, sampler, batch}, [&graph, &device_sampler, handle = batch.cast<BatchHandle>()] {
      graph.run(handle.batch);
      return device_sampler.sample(graph.output(), handle.sample_requests);
    });
  }
  // A view of the arena that keeps `self` alive.
  static py::array output(const py::object& self) {
    const TensorView logits = self.cast<const GraphHandle&>().graph_.output();
    return py::array_t<float>({logits.shape[0], logits.shape[1]}, logits.ptr<float>(), self);
  }
  void time_ops(const std::optional<MachineLimits>& limits) { graph_.time_ops(limits.value_or(MachineLimits{})); }
  [[nodiscard]] std::vector<OpTime> op_times() const {
    const std::optional<OpTimes>& times = graph_.op_times();
    return times ? times->times() : std::vector<OpTime>{};
  }
  [[nodiscard]] double runs_limit_seconds() const {
    const std::optional<OpTimes>& times = graph_.op_times();
    return times ? times->runs_limit_seconds() : 0.0;
  }
  [[nodiscard]] const ModelGraph& graph() const { return graph_; }

 private:
  void keep(TensorArg array) { arrays_.push_back(std::move(array)); }
  void keep(OptionalTensorArg array) {
    if (array.given()) {
      optional_arrays_.push_back(std::move(array));
    }
  }

  std::shared_ptr<CpuDevice> device_;
  std::vector<TensorArg> arrays_;
  std::vector<OptionalTensorArg> optional_arrays_;
  std::vector<std::shared_ptr<PackedLinear>> weights_;
  std::optional<TensorArg> kv_cache_;
  ModelGraph graph_;
};

}  // namespace

void bind_graph(py::module_& m) {
  py::class_<GraphHandle>(m, "ModelGraph", "A model's forward pass: recorded once, run every step in C++.")
      .def(py::init<std::shared_ptr<CpuDevice>, const std::string&>(), py::arg("device").none(false),
           py::arg("dtype") = "bfloat16")
      .def("buffer", &GraphHandle::buffer, py::arg("rows"), py::arg("cols"), py::arg("dtype"),
           "rows 'tokens' or 'samples'; dtype 'float32' or the graph's.")
      .def("embedding", &GraphHandle::embedding, py::arg("table"), py::arg("out"),
           py::arg("position_table") = py::none(), py::arg("scale") = 1.0F)
      .def("rms_norm", &GraphHandle::rms_norm, py::arg("x"), py::arg("residual").none(true), py::arg("weight"),
           py::arg("eps"), py::arg("out"))
      .def("layer_norm", &GraphHandle::layer_norm, py::arg("x"), py::arg("residual").none(true), py::arg("weight"),
           py::arg("bias").none(true), py::arg("eps"), py::arg("out"))
      .def("linear", &GraphHandle::linear, py::arg("x"), py::arg("weight").none(false), py::arg("out"),
           py::arg("bias") = py::none(), py::arg("activation") = py::none())
      .def("rotary_cache_write", &GraphHandle::rotary_cache_write, py::arg("qkv"), py::arg("layer"), py::arg("q"),
           py::kw_only(), py::arg("num_kv_heads"), py::arg("head_dim"), py::arg("cos_sin") = py::none(),
           py::arg("q_norm") = py::none(), py::arg("k_norm") = py::none(), py::arg("norm_eps") = 0.0F)
      .def("paged_attention", &GraphHandle::paged_attention, py::arg("q"), py::arg("layer"), py::arg("out"),
           py::kw_only(), py::arg("scale"), py::arg("soft_cap") = 0.0F, py::arg("window") = 0,
           py::arg("alibi_slopes") = py::none())
      .def("soft_cap", &GraphHandle::soft_cap, py::arg("x"), py::arg("cap"), "In place.")
      .def("add", &GraphHandle::add, py::arg("x"), py::arg("y"),
           "x += y, in place: by the last node, if that is the linear that computes y. Then y is not there.")
      .def("gather_rows", &GraphHandle::gather_rows, py::arg("x"), py::arg("out"))
      .def("finalize", &GraphHandle::finalize, py::arg("output"), py::arg("max_num_tokens"), py::arg("max_num_samples"))
      .def("bind_kv_cache", &GraphHandle::bind_kv_cache, py::arg("kv_cache"), py::arg("kv_cache_dtype") = "auto",
           "[num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]; of 'fp8_e4m3', 'fp8_e5m2' or 'int8' bytes "
           "[num_blocks, num_layers, 2, num_kv_heads, block_size * (head_dim + 4)].")
      .def("run", &GraphHandle::run, py::arg("batch"), "Releases the GIL.")
      .def("start", &GraphHandle::start, py::arg("thread"), py::arg("sampler"), py::arg("batch"),
           "Has the thread run the batch and sample its rows; returns at once.")
      .def(
          "describe", [](const GraphHandle& self) { return self.graph().describe(); }, "One line per node.")
      .def("check_invariants", [](const GraphHandle& self) { self.graph().check_invariants(); })
      .def_property_readonly("dtype", [](const GraphHandle& self) { return name_of(self.graph().activation_dtype()); })
      .def("time_ops", &GraphHandle::time_ops, py::arg("limits") = py::none(),
           "From now on every run counts its ops, anew, with their time and what the limits allow.")
      .def_property_readonly("op_times", &GraphHandle::op_times, "Since time_ops(); empty before it.")
      .def_property_readonly("runs_limit_seconds", &GraphHandle::runs_limit_seconds,
                             "What the limits allow whole runs, added up since time_ops().")
      .def_property_readonly(
          "num_nodes_run", [](const GraphHandle& self) { return self.graph().num_nodes_run(); },
          "Over all runs; any thread may ask, in the middle of one too.")
      .def_property_readonly("arena_bytes", [](const GraphHandle& self) { return self.graph().arena_bytes(); })
      .def_property_readonly("output", &GraphHandle::output,
                             "[num_samples, vocab] logits of the last run: a view, overwritten by the next run.");
}

}  // namespace fastpaged::bindings
