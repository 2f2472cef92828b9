// ModelGraph: recorded from Python once, then run every step without it.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/bind.h"
#include "bindings/handles.h"
#include "bindings/tensor_arg.h"
#include "fastpaged/base/check.h"
#include "fastpaged/graph/model_graph.h"
#include "fastpaged/ops/packed_linear.h"
#include "fastpaged/ops/params.h"

namespace py = pybind11;

namespace fastpaged::bindings {
namespace {

RowKind row_kind(const std::string& rows) {
  require(rows == "tokens" || rows == "samples",
          [&] { return "rows must be 'tokens' or 'samples', got '" + rows + "'"; });
  return rows == "tokens" ? RowKind::kTokens : RowKind::kSamples;
}

DType buffer_dtype(const std::string& dtype) {
  require(dtype == "float32" || dtype == "bfloat16",
          [&] { return "dtype must be 'float32' or 'bfloat16', got '" + dtype + "'"; });
  return dtype == "float32" ? DType::kFloat32 : DType::kBFloat16;
}

// A ModelGraph with all that it points to: the device, the weights, the KV cache. They are let go with the graph.
class GraphHandle {
 public:
  explicit GraphHandle(std::shared_ptr<CpuDevice> device)
      : device_(std::move(device)), graph_(device_->ops, device_->pool) {}

  BufferId buffer(const std::string& rows, std::int64_t cols, const std::string& dtype) {
    return graph_.buffer(row_kind(rows), cols, buffer_dtype(dtype));
  }
  void embedding(const py::object& table, BufferId out) {
    TensorArg arg(table, "table", DType::kBFloat16);
    graph_.embedding(arg.view(), out);
    arrays_.push_back(std::move(arg));
  }
  void rms_norm(BufferId x, std::optional<BufferId> residual, const py::object& weight, float eps, BufferId out) {
    TensorArg arg(weight, "weight", DType::kFloat32);
    graph_.rms_norm(x, residual ? &*residual : nullptr, arg.view(), eps, out);
    arrays_.push_back(std::move(arg));
  }
  void linear(BufferId x, const std::shared_ptr<PackedLinear>& weight, BufferId out) {
    graph_.linear(x, *weight, out);
    weights_.push_back(weight);
  }
  void rotary_cache_write(BufferId qkv, const py::object& cos_sin, std::int32_t layer, BufferId q) {
    TensorArg arg(cos_sin, "cos_sin", DType::kFloat32);
    graph_.rotary_cache_write(qkv, arg.view(), layer, q);
    arrays_.push_back(std::move(arg));
  }
  void paged_attention(BufferId q, std::int32_t layer, float scale, BufferId out) {
    graph_.paged_attention(q, layer, scale, out);
  }
  void gated_activation(BufferId gate_up, const std::string& activation, BufferId out) {
    graph_.gated_activation(gate_up, activation_from_name(activation), out);
  }
  void gather_rows(BufferId x, BufferId out) { graph_.gather_rows(x, out); }

  void finalize(BufferId output, std::int64_t max_num_tokens, std::int64_t max_num_samples) {
    graph_.finalize(output, max_num_tokens, max_num_samples);
  }
  void bind_kv_cache(const py::object& kv_cache) {
    TensorArg arg(kv_cache, "kv_cache", DType::kBFloat16, Access::kWrite);
    graph_.bind_kv_cache(arg.view());
    kv_cache_ = std::move(arg);
  }
  void run(const BatchHandle& batch) {
    const py::gil_scoped_release release;
    graph_.run(batch.batch);
  }
  // A view of the arena that keeps `self` alive.
  static py::array output(const py::object& self) {
    const TensorView logits = self.cast<const GraphHandle&>().graph_.output();
    return py::array_t<float>({logits.shape[0], logits.shape[1]}, logits.ptr<float>(), self);
  }
  [[nodiscard]] const ModelGraph& graph() const { return graph_; }

 private:
  std::shared_ptr<CpuDevice> device_;
  std::vector<TensorArg> arrays_;
  std::vector<std::shared_ptr<PackedLinear>> weights_;
  std::optional<TensorArg> kv_cache_;
  ModelGraph graph_;
};

}  // namespace

void bind_graph(py::module_& m) {
  py::class_<GraphHandle>(m, "ModelGraph", "A model's forward pass: recorded once, run every step in C++.")
      .def(py::init<std::shared_ptr<CpuDevice>>(), py::arg("device").none(false))
      .def("buffer", &GraphHandle::buffer, py::arg("rows"), py::arg("cols"), py::arg("dtype"),
           "rows 'tokens' or 'samples'; dtype 'float32' or 'bfloat16'.")
      .def("embedding", &GraphHandle::embedding, py::arg("table"), py::arg("out"))
      .def("rms_norm", &GraphHandle::rms_norm, py::arg("x"), py::arg("residual").none(true), py::arg("weight"),
           py::arg("eps"), py::arg("out"))
      .def("linear", &GraphHandle::linear, py::arg("x"), py::arg("weight").none(false), py::arg("out"))
      .def("rotary_cache_write", &GraphHandle::rotary_cache_write, py::arg("qkv"), py::arg("cos_sin"), py::arg("layer"),
           py::arg("q"))
      .def("paged_attention", &GraphHandle::paged_attention, py::arg("q"), py::arg("layer"), py::arg("scale"),
           py::arg("out"))
      .def("gated_activation", &GraphHandle::gated_activation, py::arg("gate_up"), py::arg("activation"),
           py::arg("out"))
      .def("gather_rows", &GraphHandle::gather_rows, py::arg("x"), py::arg("out"))
      .def("finalize", &GraphHandle::finalize, py::arg("output"), py::arg("max_num_tokens"), py::arg("max_num_samples"))
      .def("bind_kv_cache", &GraphHandle::bind_kv_cache, py::arg("kv_cache"),
           "[num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]")
      .def("run", &GraphHandle::run, py::arg("batch"), "Releases the GIL.")
      .def(
          "describe", [](const GraphHandle& self) { return self.graph().describe(); }, "One line per node.")
      .def("check_invariants", [](const GraphHandle& self) { self.graph().check_invariants(); })
      .def_property_readonly("arena_bytes", [](const GraphHandle& self) { return self.graph().arena_bytes(); })
      .def_property_readonly("output", &GraphHandle::output,
                             "[num_samples, vocab] logits of the last run: a view, overwritten by the next run.");
}

}  // namespace fastpaged::bindings
