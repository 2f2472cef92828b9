// What the scheduler finds after a broken invariant, and a way for tests to break one.
#include <cstdint>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/handles.h"
#include "bindings/int_arg.h"
#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged::bindings {

namespace py = pybind11;

namespace {

void give_back_too_early(const Scheduler& scheduler, const py::object& group_id) {
  BlockTable& table = scheduler.group(int_arg<GroupId>(group_id, "group_id")).sequences.front()->table();
  require(table.size() > 0, [] { return std::string("group_id must be of a request that holds blocks"); });
  table.replace(table.size() - 1, table.blocks().back());
}

}  // namespace

void bind_quarantine(py::module_& m, py::class_<Scheduler>& scheduler) {
  py::class_<Quarantine>(m, "Quarantine",
                         "What was wrong after a broken invariant, and who had to go for it. Read-only.")
      .def_readonly("found", &Quarantine::found)
      .def_readonly("failed", &Quarantine::failed)
      .def_property_readonly("events", [](const Quarantine& quarantine) { return StepEvents{quarantine.events}; });
  scheduler.def("quarantine", &Scheduler::quarantine)
      .def("check_references", &Scheduler::check_references)
      .def_property_readonly("num_quarantined_blocks", &Scheduler::num_quarantined_blocks)
      .def("_give_back_too_early", &give_back_too_early, py::arg("group_id"));
}

}  // namespace fastpaged::bindings
