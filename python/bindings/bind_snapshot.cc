// KVSnapshot: what figures there are one of each block or holder come as columns, so that a pool of many blocks costs
// no Python object for each. And the events of the prefix cache.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "fastpaged/scheduler/scheduler.h"

namespace py = pybind11;

namespace fastpaged::bindings {
namespace {

// One figure of each of them: an array of its own.
template <auto kMember, typename Items>
auto column(const Items& items) {
  using Figure = std::decay_t<decltype(items.front().*kMember)>;
  py::array_t<Figure> figures(std::ssize(items));
  auto place = figures.template mutable_unchecked<1>();
  for (py::ssize_t i = 0; i < std::ssize(items); ++i) {
    place(i) = items[i].*kMember;
  }
  return figures;
}

template <auto kMember>
auto of_blocks(const TierUse& tier) {
  return column<kMember>(tier.blocks);
}

template <auto kMember>
auto of_holders(const TierUse& tier) {
  return column<kMember>(tier.holders);
}

const char* name_of(GroupState state) {
  switch (state) {
    case GroupState::kWaiting:
      return "waiting";
    case GroupState::kRunning:
      return "running";
    case GroupState::kSwapped:
      return "swapped";
  }
  return "";
}

const char* name_of(Tier tier) {
  return tier == Tier::kDevice ? "device" : "host";
}

const char* name_of(CacheEvent::Kind kind) {
  switch (kind) {
    case CacheEvent::Kind::kStored:
      return "stored";
    case CacheEvent::Kind::kRemoved:
      return "removed";
    case CacheEvent::Kind::kMoved:
      return "moved";
    case CacheEvent::Kind::kCleared:
      return "cleared";
  }
  return "";
}

py::tuple take_cache_events(Scheduler& scheduler) {
  const CacheEvents::Taken taken = scheduler.take_cache_events();
  py::list events(taken.events.size());
  for (std::size_t i = 0; i < taken.events.size(); ++i) {
    const CacheEvent& event = taken.events[i];
    events[i] =
        py::make_tuple(name_of(event.kind), name_of(event.tier), event.hash, event.parent_hash, event.num_tokens);
  }
  return py::make_tuple(events, taken.num_dropped);
}

void bind_uses(py::module_& m) {
  py::class_<SlotSplit>(m, "SlotSplit")
      .def_readonly("num_slots", &SlotSplit::num_slots)
      .def_readonly("token_states", &SlotSplit::token_states)
      .def_readonly("reserved", &SlotSplit::reserved)
      .def_readonly("internal_waste", &SlotSplit::internal_waste)
      .def_readonly("free", &SlotSplit::free)
      .def_readonly("quarantined", &SlotSplit::quarantined)
      .def_readonly("cached_free", &SlotSplit::cached_free)
      .def_readonly("pinned", &SlotSplit::pinned)
      .def_readonly("saved", &SlotSplit::saved);

  py::class_<TierUse>(m, "TierUse")
      .def_readonly("split", &TierUse::split)
      .def_property_readonly("num_holders", &of_blocks<&BlockUse::num_holders>)
      .def_property_readonly("num_tokens", &of_blocks<&BlockUse::num_tokens>)
      .def_property_readonly("num_reserved", &of_blocks<&BlockUse::num_reserved>)
      .def_property_readonly("cached", &of_blocks<&BlockUse::cached>)
      .def_property_readonly("pinned", &of_blocks<&BlockUse::pinned>)
      .def_property_readonly("quarantined", &of_blocks<&BlockUse::quarantined>)
      .def_property_readonly("content_hash", &of_blocks<&BlockUse::content_hash>)
      .def_property_readonly("last_use", &of_blocks<&BlockUse::last_use>)
      .def_property_readonly("first_holder",
                             [](const TierUse& tier) {
                               return py::array_t<std::int32_t>(std::ssize(tier.first_holder),
                                                                tier.first_holder.data());
                             })
      .def_property_readonly("owners", &of_holders<&BlockHolder::owner>)
      .def_property_readonly("group_ids", &of_holders<&BlockHolder::group_id>)
      .def_property_readonly("indices", &of_holders<&BlockHolder::index>);

  py::class_<BlockBill>(m, "BlockBill")
      .def_readonly("num_entries", &BlockBill::num_entries)
      .def_readonly("num_owned", &BlockBill::num_owned)
      .def_readonly("num_shared", &BlockBill::num_shared)
      .def_readonly("num_charged", &BlockBill::num_charged)
      .def_property_readonly("num_saved", &BlockBill::num_saved);

  py::class_<RequestUse>(m, "RequestUse")
      .def_readonly("id", &RequestUse::id)
      .def_property_readonly("state", [](const RequestUse& use) { return name_of(use.state); })
      .def_readonly("priority", &RequestUse::priority)
      .def_readonly("num_sequences", &RequestUse::num_sequences)
      .def_readonly("num_prompt_tokens", &RequestUse::num_prompt_tokens)
      .def_readonly("num_output_tokens", &RequestUse::num_output_tokens)
      .def_readonly("num_tokens", &RequestUse::num_tokens)
      .def_readonly("num_computed_tokens", &RequestUse::num_computed_tokens)
      .def_readonly("bill", &RequestUse::bill)
      .def_readonly("in_line_since", &RequestUse::in_line_since)
      .def_readonly("num_preemptions", &RequestUse::num_preemptions)
      .def_readonly("num_tokens_recomputed", &RequestUse::num_tokens_recomputed)
      .def_readonly("num_blocks_swapped_out", &RequestUse::num_blocks_swapped_out)
      .def_readonly("num_blocks_swapped_in", &RequestUse::num_blocks_swapped_in);

  py::class_<PinUse>(m, "PinUse").def_readonly("pin", &PinUse::pin).def_readonly("bill", &PinUse::bill);
}

}  // namespace

void bind_snapshot(py::module_& m, py::class_<Scheduler>& scheduler) {
  bind_uses(m);
  py::class_<KVSnapshot>(m, "KVSnapshot")
      .def_readonly("step", &KVSnapshot::step)
      .def_readonly("planned", &KVSnapshot::planned)
      .def_readonly("block_size", &KVSnapshot::block_size)
      .def_readonly("device", &KVSnapshot::device)
      .def_readonly("host", &KVSnapshot::host)
      .def_readonly("requests", &KVSnapshot::requests)
      .def_readonly("pins", &KVSnapshot::pins);

  using NoGil = py::call_guard<py::gil_scoped_release>;
  scheduler.def("snapshot", &Scheduler::snapshot, NoGil())
      .def("slot_splits",
           [](const Scheduler& s) {
             const Scheduler::SlotSplits splits = s.slot_splits();
             return std::pair(splits.device, splits.host);
           })
      .def("take_cache_events", &take_cache_events)
      .def_property_readonly("max_cache_events", [](const Scheduler& s) { return s.config().max_cache_events; });
}

}  // namespace fastpaged::bindings
