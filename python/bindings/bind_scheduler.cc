// Scheduler, and the BatchBuilder that writes its plans into arrays.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/bool_arg.h"
#include "bindings/handles.h"
#include "bindings/int_arg.h"
#include "bindings/preemption_mode.h"
#include "fastpaged/sampling/sampler.h"
#include "fastpaged/scheduler/batch_builder.h"
#include "fastpaged/scheduler/scheduler.h"

namespace py = pybind11;

namespace fastpaged::bindings {

namespace {

// A read-only array over memory that `owner` keeps in place.
py::array view_of(std::span<const std::int32_t> data, std::vector<py::ssize_t> shape, const py::object& owner) {
  py::array array(py::dtype::of<std::int32_t>(), std::move(shape), data.data(), owner);
  array.attr("setflags")(py::arg("write") = false);
  return array;
}

template <std::span<const std::int32_t> Batch::*kArray>
py::array flat_view(const py::object& self) {
  const std::span<const std::int32_t> data = self.cast<const BatchHandle&>().batch.*kArray;
  return view_of(data, {std::ssize(data)}, self);
}

py::array block_tables_view(const py::object& self) {
  const Batch& batch = self.cast<const BatchHandle&>().batch;
  return view_of(batch.block_tables, {std::ssize(batch.context_lens), batch.max_blocks_per_sequence}, self);
}

std::unique_ptr<Scheduler> make_scheduler(const py::object& num_blocks, const py::object& block_size,
                                          const py::object& max_num_seqs, const py::object& max_num_batched_tokens,
                                          const py::object& max_model_len, const py::object& max_num_rows,
                                          const py::object& num_host_blocks,
                                          const std::optional<SchedulerPolicy>& policy,
                                          const py::object& prefix_caching, const py::object& max_pinned_blocks,
                                          const py::object& prefix_hash_mask,
                                          const std::optional<PreemptionCosts>& costs,
                                          const py::object& host_prefix_tier, const py::object& max_cache_events) {
  SchedulerConfig config;
  config.num_blocks = int_arg<std::int32_t>(num_blocks, "num_blocks");
  config.block_size = int_arg<std::int32_t>(block_size, "block_size");
  config.num_host_blocks = int_arg<std::int32_t>(num_host_blocks, "num_host_blocks");
  config.max_num_seqs = int_arg<std::int32_t>(max_num_seqs, "max_num_seqs");
  config.max_num_batched_tokens = int_arg<std::int32_t>(max_num_batched_tokens, "max_num_batched_tokens");
  config.max_model_len = int_arg<std::int32_t>(max_model_len, "max_model_len");
  config.max_num_rows = int_arg<std::int32_t>(max_num_rows, "max_num_rows", 0);
  config.policy = policy.value_or(SchedulerPolicy{});
  config.prefix_caching = bool_arg(prefix_caching, "prefix_caching");
  config.max_pinned_blocks = int_arg<std::int32_t>(max_pinned_blocks, "max_pinned_blocks");
  config.prefix_hash_mask = int_arg<std::uint64_t>(prefix_hash_mask, "prefix_hash_mask");
  config.costs = costs.value_or(PreemptionCosts{});
  config.host_prefix_tier = bool_arg(host_prefix_tier, "host_prefix_tier");
  config.max_cache_events = int_arg<std::int64_t>(max_cache_events, "max_cache_events");
  return std::make_unique<Scheduler>(config);
}

void add(Scheduler& scheduler, const py::object& group_id, const py::object& prompt_token_ids,
         const SamplingParams& sampling, const py::object& max_tokens, const py::object& stop_token_ids,
         const py::object& num_samples, const std::string& cache_root, const py::object& skip_prefix_cache,
         const py::object& priority, const py::object& deadline_ns, const py::object& queue_deadline_ns) {
  NewRequest request;
  request.id = int_arg<GroupId>(group_id, "group_id");
  request.prompt_token_ids = token_ids_arg(prompt_token_ids, "prompt_token_ids");
  request.sampling = sampling;
  request.stop.max_tokens = int_arg<std::int32_t>(max_tokens, "max_tokens");
  request.stop.stop_token_ids = token_ids_arg(stop_token_ids, "stop_token_ids");
  request.num_samples = int_arg<std::int32_t>(num_samples, "num_samples");
  request.cache_root = cache_root;
  request.skip_prefix_cache = bool_arg(skip_prefix_cache, "skip_prefix_cache");
  request.priority = int_arg<std::int32_t>(priority, "priority");
  request.deadline = int_arg<Nanoseconds>(deadline_ns, "deadline_ns");
  request.queue_deadline = int_arg<Nanoseconds>(queue_deadline_ns, "queue_deadline_ns");
  scheduler.add(std::move(request));
}

std::vector<SequenceEvent> update_tokens(Scheduler& scheduler, const SchedulerOutput& plan,
                                         const py::object& token_ids) {
  std::vector<SampledToken> tokens;
  for_each_item(token_ids, "token_ids", [&](const py::object& item, auto&& name) {
    tokens.push_back(item.is_none() ? SampledToken{0, false} : SampledToken{int_arg<TokenId>(item, name(), 0), true});
  });
  const py::gil_scoped_release no_gil;
  return scheduler.update(plan, tokens);
}

py::array_t<std::int32_t> ids_of(const std::vector<BlockId>& blocks) {
  return py::array_t<std::int32_t>(std::ssize(blocks), blocks.data());
}

std::vector<SequenceId> sequence_ids(const Scheduler& scheduler, const py::object& group_id) {
  std::vector<SequenceId> ids;
  for (const auto& sequence : scheduler.group(int_arg<GroupId>(group_id, "group_id")).sequences) {
    ids.push_back(sequence->id());
  }
  return ids;
}

bool preempt(Scheduler& scheduler, const py::object& group_id, const py::object& mode) {
  return scheduler.preempt(int_arg<GroupId>(group_id, "group_id"), preemption_mode_arg(mode, "mode"));
}

void bind_batch(py::module_& m) {
  py::class_<BatchHandle>(m, "Batch")
      .def_property_readonly("token_ids", &flat_view<&Batch::token_ids>)
      .def_property_readonly("positions", &flat_view<&Batch::positions>)
      .def_property_readonly("slot_mapping", &flat_view<&Batch::slot_mapping>)
      .def_property_readonly("query_start", &flat_view<&Batch::query_start>)
      .def_property_readonly("context_lens", &flat_view<&Batch::context_lens>)
      .def_property_readonly("block_tables", &block_tables_view)
      .def_property_readonly("sample_rows", &flat_view<&Batch::sample_rows>);

  py::class_<BatchBuilder>(m, "BatchBuilder")
      .def(py::init<const Scheduler&>(), py::arg("scheduler"), py::keep_alive<1, 2>())
      .def(
          "build",
          [](BatchBuilder& builder, const SchedulerOutput& plan) {
            const Batch& batch = builder.build(plan);
            return BatchHandle{batch, builder.sample_requests()};
          },
          py::arg("plan"), py::keep_alive<0, 1>(), py::call_guard<py::gil_scoped_release>());
}

void bind_sizes(py::class_<Scheduler>& scheduler) {
  scheduler.def("has_unfinished", &Scheduler::has_unfinished)
      .def_property_readonly("num_waiting", &Scheduler::num_waiting)
      .def_property_readonly("num_running", &Scheduler::num_running)
      .def_property_readonly("num_swapped", &Scheduler::num_swapped)
      .def_property_readonly("num_blocks", [](const Scheduler& s) { return s.kv_cache().num_blocks(); })
      .def_property_readonly("num_free_blocks", [](const Scheduler& s) { return s.kv_cache().num_free_blocks(); })
      .def_property_readonly("num_host_blocks",
                             [](const Scheduler& s) { return s.kv_cache().host_pool().num_blocks(); })
      .def_property_readonly("num_free_host_blocks",
                             [](const Scheduler& s) { return s.kv_cache().host_pool().num_free(); })
      .def("free_blocks", [](const Scheduler& s) { return ids_of(s.kv_cache().device_pool().free_blocks()); })
      .def("free_host_blocks", [](const Scheduler& s) { return ids_of(s.kv_cache().host_pool().free_blocks()); })
      .def_property_readonly(
          "stats", [](const Scheduler& s) { return s.stats(); }, "As they are now: a copy.")
      .def("sequences", &sequence_ids, py::arg("group_id"))
      .def(
          "num_preemptions",
          [](const Scheduler& s, const py::object& id) {
            return s.group(int_arg<GroupId>(id, "group_id")).num_preemptions;
          },
          py::arg("group_id"))
      .def(
          "request_cost",
          [](const Scheduler& s, const py::object& id) { return s.request_cost(int_arg<GroupId>(id, "group_id")); },
          py::arg("group_id"))
      .def("check_invariants", &Scheduler::check_invariants);
}

}  // namespace

void bind_scheduler(py::module_& m) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::class_<Scheduler> scheduler(m, "Scheduler");
  scheduler
      .def(py::init(&make_scheduler), py::kw_only(), py::arg("num_blocks"), py::arg("block_size"),
           py::arg("max_num_seqs"), py::arg("max_num_batched_tokens"), py::arg("max_model_len"),
           py::arg("max_num_rows") = 0, py::arg("num_host_blocks") = 0, py::arg("policy") = py::none(),
           py::arg("prefix_caching") = false, py::arg("max_pinned_blocks") = 0,
           py::arg("prefix_hash_mask") = ~std::uint64_t{0}, py::arg("costs") = py::none(),
           py::arg("host_prefix_tier") = false, py::arg("max_cache_events") = 0)
      .def("add", &add, py::arg("group_id"), py::arg("prompt_token_ids"), py::arg("sampling"), py::arg("max_tokens"),
           py::arg("stop_token_ids"), py::arg("num_samples") = 1, py::arg("cache_root") = "",
           py::arg("skip_prefix_cache") = false, py::arg("priority") = 0, py::arg("deadline_ns") = kNoDeadline,
           py::arg("queue_deadline_ns") = kNoDeadline)
      .def(
          "abort", [](Scheduler& s, const py::object& id) { return s.abort(int_arg<GroupId>(id, "group_id")); },
          py::arg("group_id"))
      .def(
          "finish",
          [](Scheduler& s, const py::object& id, const py::object& sequence_id) {
            return s.finish(int_arg<GroupId>(id, "group_id"), int_arg<SequenceId>(sequence_id, "sequence_id"));
          },
          py::arg("group_id"), py::arg("sequence_id"))
      .def(
          "finish_beams",
          [](Scheduler& s, const py::object& id, const std::vector<SequenceId>& sequence_ids) {
            return s.finish_beams(int_arg<GroupId>(id, "group_id"), sequence_ids);
          },
          py::arg("group_id"), py::arg("sequence_ids"))
      .def(
          "fork",
          [](Scheduler& s, const py::object& id, const py::object& sequence_id) {
            return s.fork(int_arg<GroupId>(id, "group_id"), int_arg<SequenceId>(sequence_id, "sequence_id"));
          },
          py::arg("group_id"), py::arg("sequence_id"))
      .def("preempt", &preempt, py::arg("group_id"), py::arg("mode"))
      .def("reset", &Scheduler::reset)
      .def("schedule", py::overload_cast<>(&Scheduler::schedule), NoGil())
      .def("schedule", py::overload_cast<Nanoseconds>(&Scheduler::schedule), py::arg("now_ns"), NoGil())
      .def("set_costs", &Scheduler::set_costs, py::arg("costs"))
      .def(
          "update",
          [](Scheduler& s, const SchedulerOutput& plan, const SamplerOutput& result) {
            const SampledRows results = {.tokens = result.tokens,
                                         .top_offsets = result.top_offsets,
                                         .top_ids = result.top_ids,
                                         .top_logprobs = result.top_logprobs};
            return StepEvents{s.update(plan, results)};
          },
          py::arg("plan"), py::arg("result"), NoGil())
      .def("update_tokens", &update_tokens, py::arg("plan"), py::arg("token_ids"));
  bind_sizes(scheduler);
  bind_prefixes(m, scheduler);
  bind_snapshot(m, scheduler);
  bind_recording(scheduler);
  bind_quarantine(m, scheduler);
  bind_batch(m);
}

}  // namespace fastpaged::bindings
