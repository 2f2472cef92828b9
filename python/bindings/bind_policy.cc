// SchedulerPolicy: all that scheduling policies differ in, and the names of its values.
#include <pybind11/pybind11.h>

#include <string>

#include "bindings/bind.h"
#include "bindings/bool_arg.h"
#include "bindings/int_arg.h"
#include "bindings/preemption_mode.h"
#include "fastpaged/scheduler/scheduler_policy.h"

namespace py = pybind11;

namespace fastpaged::bindings {
namespace {

double number_arg(const py::object& value, const char* name) {
  const double number = PyFloat_AsDouble(value.ptr());
  if (number == -1.0 && PyErr_Occurred() != nullptr) {
    clear_type_error();
    throw py::type_error(std::string(name) + " must be a number, got " + std::string(py::repr(value)));
  }
  return number;
}

std::string described(const SchedulerPolicy& policy) {
  const py::str text(
      "SchedulerPolicy(preemption_mode={!r}, chunked_prefill={}, long_prefill_token_threshold={}, watermark={}, "
      "counts_running_needs={}, block_per_branch={}, swapped_before_waiting={}, resume_grace_steps={}, "
      "by_priority={}, ageing_steps={}, prefill_share={})");
  return py::str(text.format(name_of(policy.preemption_mode), policy.chunked_prefill,
                             policy.long_prefill_token_threshold, policy.watermark, policy.counts_running_needs,
                             policy.block_per_branch, policy.swapped_before_waiting, policy.resume_grace_steps,
                             policy.by_priority, policy.ageing_steps, policy.prefill_share));
}

SchedulerPolicy make_policy(const py::object& preemption_mode, const py::object& chunked_prefill,
                            const py::object& long_prefill_token_threshold, const py::object& watermark,
                            const py::object& counts_running_needs, const py::object& block_per_branch,
                            const py::object& swapped_before_waiting, const py::object& resume_grace_steps,
                            const py::object& by_priority, const py::object& ageing_steps,
                            const py::object& prefill_share) {
  SchedulerPolicy policy;
  policy.preemption_mode = preemption_mode_arg(preemption_mode, "preemption_mode");
  policy.chunked_prefill = bool_arg(chunked_prefill, "chunked_prefill");
  policy.long_prefill_token_threshold =
      int_arg<std::int32_t>(long_prefill_token_threshold, "long_prefill_token_threshold");
  policy.watermark = number_arg(watermark, "watermark");
  policy.counts_running_needs = bool_arg(counts_running_needs, "counts_running_needs");
  policy.block_per_branch = bool_arg(block_per_branch, "block_per_branch");
  policy.swapped_before_waiting = bool_arg(swapped_before_waiting, "swapped_before_waiting");
  policy.resume_grace_steps = int_arg<std::int32_t>(resume_grace_steps, "resume_grace_steps");
  policy.by_priority = bool_arg(by_priority, "by_priority");
  policy.ageing_steps = int_arg<std::int32_t>(ageing_steps, "ageing_steps");
  policy.prefill_share = int_arg<std::int32_t>(prefill_share, "prefill_share");
  validate(policy);
  return policy;
}

}  // namespace

void bind_policy(py::module_& m) {
  const SchedulerPolicy usual;
  py::class_<SchedulerPolicy>(m, "SchedulerPolicy", "All that scheduling policies differ in. Read-only.")
      .def(py::init(&make_policy), py::kw_only(), py::arg("preemption_mode") = name_of(usual.preemption_mode),
           py::arg("chunked_prefill") = usual.chunked_prefill,
           py::arg("long_prefill_token_threshold") = usual.long_prefill_token_threshold,
           py::arg("watermark") = usual.watermark, py::arg("counts_running_needs") = usual.counts_running_needs,
           py::arg("block_per_branch") = usual.block_per_branch,
           py::arg("swapped_before_waiting") = usual.swapped_before_waiting,
           py::arg("resume_grace_steps") = usual.resume_grace_steps, py::arg("by_priority") = usual.by_priority,
           py::arg("ageing_steps") = usual.ageing_steps, py::arg("prefill_share") = usual.prefill_share)
      .def("__repr__", &described)
      .def_static("paper_2023", &SchedulerPolicy::paper_2023)
      .def_property_readonly("preemption_mode",
                             [](const SchedulerPolicy& policy) { return name_of(policy.preemption_mode); })
      .def_readonly("chunked_prefill", &SchedulerPolicy::chunked_prefill)
      .def_readonly("long_prefill_token_threshold", &SchedulerPolicy::long_prefill_token_threshold)
      .def_readonly("watermark", &SchedulerPolicy::watermark)
      .def_readonly("counts_running_needs", &SchedulerPolicy::counts_running_needs)
      .def_readonly("block_per_branch", &SchedulerPolicy::block_per_branch)
      .def_readonly("swapped_before_waiting", &SchedulerPolicy::swapped_before_waiting)
      .def_readonly("resume_grace_steps", &SchedulerPolicy::resume_grace_steps)
      .def_readonly("by_priority", &SchedulerPolicy::by_priority)
      .def_readonly("ageing_steps", &SchedulerPolicy::ageing_steps)
      .def_readonly("prefill_share", &SchedulerPolicy::prefill_share);

  const PreemptionCosts free;
  py::class_<PreemptionCosts>(m, "PreemptionCosts", "What moving and computing cost, in seconds. Read-only.")
      .def(py::init([](const py::object& token, const py::object& out, const py::object& in) {
             return PreemptionCosts{.seconds_per_token = number_arg(token, "seconds_per_token"),
                                    .seconds_per_block_out = number_arg(out, "seconds_per_block_out"),
                                    .seconds_per_block_in = number_arg(in, "seconds_per_block_in")};
           }),
           py::kw_only(), py::arg("seconds_per_token") = free.seconds_per_token,
           py::arg("seconds_per_block_out") = free.seconds_per_block_out,
           py::arg("seconds_per_block_in") = free.seconds_per_block_in)
      .def_readonly("seconds_per_token", &PreemptionCosts::seconds_per_token)
      .def_readonly("seconds_per_block_out", &PreemptionCosts::seconds_per_block_out)
      .def_readonly("seconds_per_block_in", &PreemptionCosts::seconds_per_block_in);
}

}  // namespace fastpaged::bindings
