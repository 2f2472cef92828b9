// What this machine can do: the loops its limits are measured with, and the limits themselves.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/handles.h"
#include "bindings/tensor_arg.h"
#include "fastpaged/base/check.h"
#include "fastpaged/graph/op_times.h"
#include "fastpaged/ops/machine_kernels.h"
#include "fastpaged/ops/machine_limits.h"

namespace py = pybind11;

namespace fastpaged::bindings {
namespace {

std::pair<double, double> measured(const Measurement& measurement) {
  return {measurement.amount, measurement.seconds};
}

void require_positive(const char* name, std::int64_t value) {
  require(value >= 1, [&] { return std::string(name) + " must be at least 1, got " + std::to_string(value); });
}

std::pair<double, double> read(const std::shared_ptr<CpuDevice>& device, const py::object& buffer,
                               std::int64_t piece_bytes, std::int64_t num_passes) {
  require_positive("piece_bytes", piece_bytes);
  require_positive("num_passes", num_passes);
  const BytesArg arg(buffer, "buffer");
  const MachineKernels kernels = machine_kernels(device->ops.isa);
  const py::gil_scoped_release release;
  return measured(measure_read(kernels, arg.bytes(), piece_bytes, num_passes, device->pool));
}

class MatrixProbeHandle {
 public:
  MatrixProbeHandle(std::shared_ptr<CpuDevice> device, const std::string& dtype, std::int64_t weight_bytes)
      : device_(std::move(device)), probe_(kernel(*device_, dtype), checked(weight_bytes), device_->pool) {}

  std::pair<double, double> measure(std::int64_t num_passes) {
    require_positive("num_passes", num_passes);
    const py::gil_scoped_release release;
    return measured(probe_.measure(num_passes));
  }

 private:
  static MatrixKernel kernel(const CpuDevice& device, const std::string& dtype) {
    const MachineKernels kernels = machine_kernels(device.ops.isa);
    return activation_dtype(dtype) == DType::kBFloat16 ? kernels.bfloat16 : kernels.float32;
  }
  static std::int64_t checked(std::int64_t weight_bytes) {
    constexpr std::int64_t kMost = std::int64_t{1} << 30;
    require(weight_bytes >= 0 && weight_bytes <= kMost, [&] {
      return "weight_bytes must lie in [0, " + std::to_string(kMost) + "], got " + std::to_string(weight_bytes);
    });
    return weight_bytes;
  }

  std::shared_ptr<CpuDevice> device_;
  MatrixProbe probe_;
};

std::vector<std::string> matrix_dtypes(const std::string& isa) {
  if (machine_kernels(isa).has_bfloat16()) {
    return {"bfloat16", "float32"};
  }
  return {"float32"};
}

void bind_op_time(py::module_& m) {
  py::class_<OpTime>(m, "OpTime", "All calls of an op that are alike.")
      .def_property_readonly("op", &OpTime::name)
      .def_property_readonly("label", &OpTime::label, "The op, with a linear layer's shape or attention's window.")
      .def_readonly("calls", &OpTime::num_calls)
      .def_property_readonly("seconds",
                             [](const OpTime& self) { return std::chrono::duration<double>(self.time).count(); })
      .def_property_readonly("weight_bytes", [](const OpTime& self) { return self.cost.weight_bytes; })
      .def_property_readonly("kv_bytes", [](const OpTime& self) { return self.cost.kv_bytes; })
      .def_property_readonly("activation_bytes", [](const OpTime& self) { return self.cost.activation_bytes; })
      .def_property_readonly("flops", [](const OpTime& self) { return self.cost.flops; })
      .def_readonly("limit_seconds", &OpTime::limit_seconds, "What the limits given to time_ops() allow.");
}

}  // namespace

void bind_machine(py::module_& m) {
  m.def("measure_read", &read, py::arg("device").none(false), py::arg("buffer"), py::kw_only(), py::arg("piece_bytes"),
        py::arg("num_passes") = 1, "(bytes, seconds). Releases the GIL.");
  m.def("matrix_dtypes", &matrix_dtypes, py::arg("isa"), "What the table called isa multiplies without widening it.");
  py::class_<MatrixProbeHandle>(m, "MatrixProbe", "Multiplies on all threads of a device.")
      .def(py::init<std::shared_ptr<CpuDevice>, const std::string&, std::int64_t>(), py::arg("device").none(false),
           py::arg("dtype"), py::kw_only(), py::arg("weight_bytes"))
      .def("measure", &MatrixProbeHandle::measure, py::arg("num_passes"), "(flops, seconds). Releases the GIL.");
  py::class_<MachineLimits>(m, "MachineLimits", "Rates that ops are held against; 0: not known.")
      .def(py::init([](double memory_rate, double cache_rate, double shared_cache_rate, std::int64_t cache_bytes,
                       double flop_rate) {
             return MachineLimits{.memory_rate = memory_rate,
                                  .cache_rate = cache_rate,
                                  .shared_cache_rate = shared_cache_rate,
                                  .cache_bytes = cache_bytes,
                                  .flop_rate = flop_rate};
           }),
           py::kw_only(), py::arg("memory_rate"), py::arg("cache_rate"), py::arg("shared_cache_rate"),
           py::arg("cache_bytes"), py::arg("flop_rate"))
      .def_readonly("memory_rate", &MachineLimits::memory_rate)
      .def_readonly("cache_rate", &MachineLimits::cache_rate)
      .def_readonly("shared_cache_rate", &MachineLimits::shared_cache_rate)
      .def_readonly("cache_bytes", &MachineLimits::cache_bytes)
      .def_readonly("flop_rate", &MachineLimits::flop_rate)
      .def(
          "seconds",
          [](const MachineLimits& self, std::int64_t memory_bytes, std::int64_t activation_bytes, std::int64_t flops) {
            return self.seconds({.weight_bytes = memory_bytes, .activation_bytes = activation_bytes, .flops = flops});
          },
          py::kw_only(), py::arg("memory_bytes") = 0, py::arg("activation_bytes") = 0, py::arg("flops") = 0,
          "What one call that moves and computes so much takes at the least.");
  bind_op_time(m);
}

}  // namespace fastpaged::bindings
