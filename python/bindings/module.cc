// The extension module: a list of what is bound, nothing else.
#include <pybind11/pybind11.h>

#include "bindings/bind.h"

PYBIND11_MODULE(_core, m) {
  using namespace fastpaged::bindings;
  m.doc() = "The C++ core of fastpaged.";
  m.attr("__version__") = FASTPAGED_VERSION;
  bind_device(m);
  bind_machine(m);
  bind_weights(m);
  bind_ops(m);
  bind_attention_ops(m);
  bind_graph(m);
  bind_policy(m);
  bind_plan(m);
  bind_scheduler(m);
  bind_sampling(m);
}
