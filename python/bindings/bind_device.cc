// CpuDevice and what this machine offers.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>

#include "bindings/bind.h"
#include "bindings/handles.h"
#include "fastpaged/base/cpu_features.h"
#include "fastpaged/ops/op_table.h"

namespace py = pybind11;

namespace fastpaged::bindings {

void bind_device(py::module_& m) {
  m.def("known_isas", &known_isas, "Every op table of this build, best first.");
  m.def("supported_isas", &supported_isas, "The op tables this CPU can run, best first.");
  m.def("default_isa", &default_isa, "FASTPAGED_ISA, or the best this CPU has.");
  m.def("available_cpus", &available_cpus, "CPUs this process may use: affinity mask and cgroup quota, at least 1.");

  py::class_<CpuDevice, std::shared_ptr<CpuDevice>>(
      m, "CpuDevice", "One op table and one thread pool. Everything made from it keeps it alive.")
      .def(py::init<const std::string&, int>(), py::arg("isa"), py::arg("num_threads"))
      .def_property_readonly("isa", [](const CpuDevice& device) { return device.ops.isa; })
      .def_property_readonly("weight_layout", [](const CpuDevice& device) { return device.ops.weight_layout; })
      .def_property_readonly("num_threads", [](const CpuDevice& device) { return device.pool.num_threads(); });
}

}  // namespace fastpaged::bindings
