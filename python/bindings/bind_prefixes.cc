// What the scheduler knows of cached and pinned prefixes.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <iterator>
#include <string>
#include <vector>

#include "bindings/bind.h"
#include "bindings/int_arg.h"
#include "fastpaged/scheduler/scheduler.h"

namespace py = pybind11;

namespace fastpaged::bindings {
namespace {

PinId pin_id_arg(const py::object& pin_id) {
  return int_arg<PinId>(pin_id, "pin_id");
}

std::int32_t pin(Scheduler& scheduler, const py::object& pin_id, const py::object& token_ids,
                 const std::string& cache_root) {
  return scheduler.pin(pin_id_arg(pin_id), token_ids_arg(token_ids, "token_ids"), cache_root);
}

py::array_t<std::int32_t> cached_free_blocks(const Scheduler& scheduler) {
  const std::vector<BlockId> blocks = scheduler.kv_cache().device_pool().cached_free_blocks();
  return py::array_t<std::int32_t>(std::ssize(blocks), blocks.data());
}

py::array_t<std::int32_t> cached_free_host_blocks(const Scheduler& scheduler) {
  const std::vector<BlockId> blocks = scheduler.kv_cache().host_pool().cached_free_blocks();
  return py::array_t<std::int32_t>(std::ssize(blocks), blocks.data());
}

}  // namespace

void bind_prefixes(py::module_& m, py::class_<Scheduler>& scheduler) {
  py::class_<PinnedPrefix>(m, "PinnedPrefix")
      .def_readonly("id", &PinnedPrefix::id)
      .def_readonly("num_tokens", &PinnedPrefix::num_tokens)
      .def_readonly("num_blocks", &PinnedPrefix::num_blocks)
      .def_readonly("num_held_blocks", &PinnedPrefix::num_held_blocks);

  scheduler.def("pin", &pin, py::arg("pin_id"), py::arg("token_ids"), py::arg("cache_root") = "")
      .def(
          "unpin", [](Scheduler& s, const py::object& pin_id) { return s.unpin(pin_id_arg(pin_id)); },
          py::arg("pin_id"))
      .def("pins", &Scheduler::pins)
      .def("reset_prefix_cache", &Scheduler::reset_prefix_cache)
      .def("cached_free_blocks", &cached_free_blocks)
      .def("cached_free_host_blocks", &cached_free_host_blocks)
      .def_property_readonly("num_cached_host_blocks",
                             [](const Scheduler& s) { return s.kv_cache().num_cached_host_blocks(); })
      .def_property_readonly("num_logical_blocks", &Scheduler::num_logical_blocks)
      .def_property_readonly("num_held_blocks", &Scheduler::num_physical_blocks);
}

}  // namespace fastpaged::bindings
