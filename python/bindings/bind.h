// One bind_*() per file of this folder.
#pragma once

#include <pybind11/pybind11.h>

namespace fastpaged {
class Scheduler;
}

namespace fastpaged::bindings {

void bind_device(pybind11::module_& m);
void bind_machine(pybind11::module_& m);
void bind_weights(pybind11::module_& m);
void bind_ops(pybind11::module_& m);
void bind_attention_ops(pybind11::module_& m);
void bind_graph(pybind11::module_& m);
void bind_policy(pybind11::module_& m);
void bind_plan(pybind11::module_& m);
void bind_scheduler(pybind11::module_& m);
void bind_prefixes(pybind11::module_& m, pybind11::class_<Scheduler>& scheduler);
void bind_snapshot(pybind11::module_& m, pybind11::class_<Scheduler>& scheduler);
void bind_recording(pybind11::class_<Scheduler>& scheduler);
void bind_quarantine(pybind11::module_& m, pybind11::class_<Scheduler>& scheduler);
void bind_sampling(pybind11::module_& m);

}  // namespace fastpaged::bindings
