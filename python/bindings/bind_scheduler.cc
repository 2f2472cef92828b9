#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/handles.h"
#include "bindings/int_arg.h"
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

SamplingParams make_sampling_params(float temperature, float top_p, const py::object& top_k, float min_p,
                                    const py::object& seed, const py::object& num_logprobs) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_p = top_p;
  params.top_k = int_arg<std::int32_t>(top_k, "top_k", 0);
  params.min_p = min_p;
  params.seed = int_arg<std::uint64_t>(seed, "seed");
  if (!num_logprobs.is_none()) {
    params.num_logprobs = int_arg<std::int32_t>(num_logprobs, "num_logprobs", 0);
  }
  validate(params);
  return params;
}

std::unique_ptr<Scheduler> make_scheduler(const py::object& num_blocks, const py::object& block_size,
                                          const py::object& max_num_seqs, const py::object& max_num_batched_tokens,
                                          const py::object& max_model_len,
                                          const py::object& long_prefill_token_threshold) {
  SchedulerConfig config;
  config.num_blocks = int_arg<std::int32_t>(num_blocks, "num_blocks");
  config.block_size = int_arg<std::int32_t>(block_size, "block_size");
  config.max_num_seqs = int_arg<std::int32_t>(max_num_seqs, "max_num_seqs");
  config.max_num_batched_tokens = int_arg<std::int32_t>(max_num_batched_tokens, "max_num_batched_tokens");
  config.max_model_len = int_arg<std::int32_t>(max_model_len, "max_model_len");
  config.long_prefill_token_threshold =
      int_arg<std::int32_t>(long_prefill_token_threshold, "long_prefill_token_threshold");
  return std::make_unique<Scheduler>(config);
}

void add(Scheduler& scheduler, const py::object& group_id, const py::object& prompt_token_ids,
         const SamplingParams& sampling, const py::object& max_tokens, const py::object& stop_token_ids) {
  NewRequest request;
  request.id = int_arg<GroupId>(group_id, "group_id");
  request.prompt_token_ids = token_ids_arg(prompt_token_ids, "prompt_token_ids");
  request.sampling = sampling;
  request.stop.max_tokens = int_arg<std::int32_t>(max_tokens, "max_tokens");
  request.stop.stop_token_ids = token_ids_arg(stop_token_ids, "stop_token_ids");
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

std::vector<std::tuple<GroupId, std::int32_t, std::int32_t>> scheduled_rows(const SchedulerOutput& plan) {
  std::vector<std::tuple<GroupId, std::int32_t, std::int32_t>> rows;
  rows.reserve(plan.scheduled.size());
  for (const ScheduledSequence& scheduled : plan.scheduled) {
    rows.emplace_back(scheduled.group_id, scheduled.first_token, scheduled.num_tokens);
  }
  return rows;
}

py::array_t<std::int32_t> free_blocks(const Scheduler& scheduler) {
  const std::vector<BlockId> blocks = scheduler.kv_cache().free_blocks();
  return py::array_t<std::int32_t>(std::ssize(blocks), blocks.data());
}

template <typename Value>
std::optional<Value> when(bool there, Value value) {
  return there ? std::optional<Value>(value) : std::nullopt;
}

void bind_values(py::module_& m) {
  py::class_<SamplingParams>(m, "SamplingParams")
      .def(py::init(&make_sampling_params), py::kw_only(), py::arg("temperature"), py::arg("top_p"), py::arg("top_k"),
           py::arg("min_p"), py::arg("seed"), py::arg("num_logprobs"));

  py::enum_<FinishReason>(m, "FinishReason")
      .value("STOP", FinishReason::kStop)
      .value("LENGTH", FinishReason::kLength)
      .value("ABORT", FinishReason::kAbort)
      .value("ERROR", FinishReason::kError);

  py::class_<SequenceEvent>(m, "SequenceEvent")
      .def_readonly("group_id", &SequenceEvent::group_id)
      .def_readonly("sequence_id", &SequenceEvent::sequence_id)
      .def_property_readonly("token_id", [](const SequenceEvent& e) { return when(e.has_token, e.token_id); })
      .def_property_readonly("sample_row", [](const SequenceEvent& e) { return when(e.has_token, e.sample_row); })
      .def_property_readonly("finish_reason", [](const SequenceEvent& e) { return when(e.finished, e.finish_reason); });

  py::class_<SchedulerOutput>(m, "SchedulerOutput")
      .def_property_readonly("scheduled", &scheduled_rows)
      .def_readonly("preempted", &SchedulerOutput::preempted)
      .def_readonly("num_tokens", &SchedulerOutput::num_tokens)
      .def_readonly("num_samples", &SchedulerOutput::num_samples);

  py::class_<BatchHandle>(m, "Batch")
      .def_property_readonly("token_ids", &flat_view<&Batch::token_ids>)
      .def_property_readonly("positions", &flat_view<&Batch::positions>)
      .def_property_readonly("slot_mapping", &flat_view<&Batch::slot_mapping>)
      .def_property_readonly("query_start", &flat_view<&Batch::query_start>)
      .def_property_readonly("context_lens", &flat_view<&Batch::context_lens>)
      .def_property_readonly("block_tables", &block_tables_view)
      .def_property_readonly("sample_rows", &flat_view<&Batch::sample_rows>);
}

}  // namespace

void bind_scheduler(py::module_& m) {
  bind_values(m);
  using NoGil = py::call_guard<py::gil_scoped_release>;

  py::class_<Scheduler>(m, "Scheduler")
      .def(py::init(&make_scheduler), py::kw_only(), py::arg("num_blocks"), py::arg("block_size"),
           py::arg("max_num_seqs"), py::arg("max_num_batched_tokens"), py::arg("max_model_len"),
           py::arg("long_prefill_token_threshold") = 0)
      .def("add", &add, py::arg("group_id"), py::arg("prompt_token_ids"), py::arg("sampling"), py::arg("max_tokens"),
           py::arg("stop_token_ids"))
      .def(
          "abort", [](Scheduler& s, const py::object& id) { return s.abort(int_arg<GroupId>(id, "group_id")); },
          py::arg("group_id"))
      .def("schedule", &Scheduler::schedule, NoGil())
      .def(
          "update",
          [](Scheduler& s, const SchedulerOutput& plan, const SamplerOutput& result) {
            return s.update(plan, result.tokens);
          },
          py::arg("plan"), py::arg("result"), NoGil())
      .def("update_tokens", &update_tokens, py::arg("plan"), py::arg("token_ids"))
      .def("has_unfinished", &Scheduler::has_unfinished)
      .def_property_readonly("num_waiting", &Scheduler::num_waiting)
      .def_property_readonly("num_running", &Scheduler::num_running)
      .def_property_readonly("num_blocks", [](const Scheduler& s) { return s.kv_cache().num_blocks(); })
      .def_property_readonly("num_free_blocks", [](const Scheduler& s) { return s.kv_cache().num_free_blocks(); })
      .def("free_blocks", &free_blocks)
      .def(
          "num_preemptions",
          [](const Scheduler& s, const py::object& id) {
            return s.group(int_arg<GroupId>(id, "group_id")).num_preemptions;
          },
          py::arg("group_id"))
      .def("check_invariants", &Scheduler::check_invariants);

  py::class_<BatchBuilder>(m, "BatchBuilder")
      .def(py::init<const Scheduler&>(), py::arg("scheduler"), py::keep_alive<1, 2>())
      .def(
          "build",
          [](BatchBuilder& builder, const SchedulerOutput& plan) {
            const Batch& batch = builder.build(plan);
            return BatchHandle{batch, builder.sample_requests()};
          },
          py::arg("plan"), py::keep_alive<0, 1>(), NoGil());
}

}  // namespace fastpaged::bindings
