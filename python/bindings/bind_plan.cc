// What goes in and out of the scheduler as values, and the copies that a plan asks for.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/bool_arg.h"
#include "bindings/handles.h"
#include "bindings/int_arg.h"
#include "bindings/tensor_arg.h"
#include "fastpaged/base/check.h"
#include "fastpaged/ops/copy_blocks.h"
#include "fastpaged/request/sampling_params.h"
#include "fastpaged/request/stopping.h"
#include "fastpaged/scheduler/scheduler_output.h"
#include "fastpaged/scheduler/scheduler_stats.h"

namespace py = pybind11;

namespace fastpaged::bindings {
namespace {

std::vector<std::vector<TokenId>> bad_words_arg(const py::object& bad_words) {
  std::vector<std::vector<TokenId>> words;
  for_each_item(bad_words, "bad_words",
                [&](const py::object& word, auto&& name) { words.push_back(token_ids_arg(word, name())); });
  return words;
}

std::vector<TokenRules::Bias> logit_bias_arg(const py::dict& logit_bias) {
  std::vector<TokenRules::Bias> biases;
  for (const auto& [id, bias] : logit_bias) {
    biases.push_back({int_arg<TokenId>(id, "a key of logit_bias", 0),
                      static_cast<float>(py::float_(py::reinterpret_borrow<py::object>(bias)))});
  }
  return biases;
}

// Null if there is nothing in them.
std::shared_ptr<const TokenRules> make_rules(const py::dict& logit_bias, const py::object& allowed_token_ids,
                                             const py::object& end_token_ids, const py::object& bad_words) {
  TokenRules rules;
  rules.logit_bias = logit_bias_arg(logit_bias);
  if (!allowed_token_ids.is_none()) {
    rules.allowed_token_ids = token_ids_arg(allowed_token_ids, "allowed_token_ids");
    require(!rules.allowed_token_ids.empty(), [] { return "allowed_token_ids must be None or hold an id, got none"; });
  }
  rules.end_token_ids = token_ids_arg(end_token_ids, "end_token_ids");
  rules.bad_words = bad_words_arg(bad_words);
  const bool empty = rules.logit_bias.empty() && rules.allowed_token_ids.empty() && rules.end_token_ids.empty() &&
                     rules.bad_words.empty();
  return empty ? nullptr : std::make_shared<const TokenRules>(std::move(rules));
}

EarlyStopping early_stopping_arg(const py::object& early_stopping) {
  if (py::isinstance<py::bool_>(early_stopping)) {
    return early_stopping.cast<bool>() ? EarlyStopping::kYes : EarlyStopping::kNo;
  }
  require(py::isinstance<py::str>(early_stopping) && early_stopping.cast<std::string>() == "never", [&] {
    return "early_stopping must be False, True or 'never', got " + py::repr(early_stopping).cast<std::string>();
  });
  return EarlyStopping::kNever;
}

// None without a width.
std::optional<BeamParams> make_beam_params(const py::object& beam_width, double length_penalty,
                                           const py::object& early_stopping, const py::object& num_candidates,
                                           const py::object& has_stop_strings) {
  if (beam_width.is_none()) {
    return std::nullopt;
  }
  BeamParams beam;
  beam.width = int_arg<std::int32_t>(beam_width, "beam_width", 1);
  beam.length_penalty = length_penalty;
  beam.early_stopping = early_stopping_arg(early_stopping);
  beam.num_candidates = int_arg<std::int32_t>(num_candidates, "num_candidates");
  beam.has_stop_strings = bool_arg(has_stop_strings, "has_stop_strings");
  return beam;
}

SamplingParams make_sampling_params(float temperature, float top_p, const py::object& top_k, float min_p,
                                    const py::object& seed, const py::object& num_logprobs, float presence_penalty,
                                    float frequency_penalty, float repetition_penalty, const py::object& min_tokens,
                                    const py::dict& logit_bias, const py::object& allowed_token_ids,
                                    const py::object& end_token_ids, const py::object& bad_words,
                                    const py::object& num_prompt_logprobs, const py::object& beam_width,
                                    double length_penalty, const py::object& early_stopping,
                                    const py::object& num_candidates, const py::object& has_stop_strings) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_p = top_p;
  params.top_k = int_arg<std::int32_t>(top_k, "top_k", 0);
  params.min_p = min_p;
  params.seed = int_arg<std::uint64_t>(seed, "seed");
  if (!num_logprobs.is_none()) {
    params.num_logprobs = int_arg<std::int32_t>(num_logprobs, "num_logprobs", 0);
  }
  if (!num_prompt_logprobs.is_none()) {
    params.num_prompt_logprobs = int_arg<std::int32_t>(num_prompt_logprobs, "num_prompt_logprobs", 0);
  }
  params.presence_penalty = presence_penalty;
  params.frequency_penalty = frequency_penalty;
  params.repetition_penalty = repetition_penalty;
  params.min_tokens = int_arg<std::int32_t>(min_tokens, "min_tokens", 0);
  params.rules = make_rules(logit_bias, allowed_token_ids, end_token_ids, bad_words);
  params.beam = make_beam_params(beam_width, length_penalty, early_stopping, num_candidates, has_stop_strings);
  validate(params);
  return params;
}

template <typename Value>
std::optional<Value> when(bool there, Value value) {
  return there ? std::optional<Value>(value) : std::nullopt;
}

std::vector<std::tuple<GroupId, std::int32_t, std::int32_t>> scheduled_rows(const SchedulerOutput& plan) {
  std::vector<std::tuple<GroupId, std::int32_t, std::int32_t>> rows;
  rows.reserve(plan.scheduled.size());
  for (const ScheduledSequence& scheduled : plan.scheduled) {
    rows.emplace_back(scheduled.group_id, scheduled.first_token, scheduled.num_tokens);
  }
  return rows;
}

std::vector<SequenceId> scheduled_sequences(const SchedulerOutput& plan) {
  std::vector<SequenceId> ids;
  ids.reserve(plan.scheduled.size());
  for (const ScheduledSequence& scheduled : plan.scheduled) {
    ids.push_back(scheduled.sequence_id);
  }
  return ids;
}

std::vector<std::pair<std::int32_t, std::int32_t>> result_counts(const SchedulerOutput& plan) {
  std::vector<std::pair<std::int32_t, std::int32_t>> counts;
  counts.reserve(plan.scheduled.size());
  for (const ScheduledSequence& scheduled : plan.scheduled) {
    counts.emplace_back(scheduled.num_scores, scheduled.num_draws);
  }
  return counts;
}

const char* name_of(CopyKind kind) {
  return kind == CopyKind::kSwapOut ? "swap_out" : kind == CopyKind::kSwapIn ? "swap_in" : "copy_on_write";
}

std::vector<std::tuple<const char*, BlockId, BlockId, std::int32_t>> copy_rows(const SchedulerOutput& plan) {
  std::vector<std::tuple<const char*, BlockId, BlockId, std::int32_t>> rows;
  rows.reserve(plan.copies.size());
  for (const BlockCopy& copy : plan.copies) {
    rows.emplace_back(name_of(copy.kind), copy.source, copy.destination, copy.num_blocks);
  }
  return rows;
}

bool is_contiguous(const TensorView& view) {
  std::int64_t expected = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    if (view.shape[axis] > 1 && view.strides[axis] != expected) {
      return false;
    }
    expected *= view.shape[axis];
  }
  return true;
}

// An array of blocks as one tier's memory, and the bytes of one block.
struct BlockArray {
  BlockMemory memory;
  std::int64_t block_bytes = 0;

  BlockArray(const TensorView& view, const std::string& name) {
    require(view.rank > 0 && is_contiguous(view),
            [&] { return name + " must be C-contiguous, with the block as its first axis"; });
    memory = {static_cast<std::byte*>(view.data), view.shape[0]};
    block_bytes = static_cast<std::int64_t>(size_of(view.dtype));
    for (int axis = 1; axis < view.rank; ++axis) {
      block_bytes *= view.shape[axis];
    }
    require(block_bytes > 0, [&] { return name + " must have blocks of at least one byte, got 0"; });
  }
};

std::int64_t run_copies(const SchedulerOutput& plan, const py::object& device, const py::object& host) {
  if (plan.copies.empty()) {
    return 0;
  }
  // As bytes, whichever of 8 bits they are of.
  const TensorArg device_arg(device, "device", {DType::kBFloat16, DType::kFloat32, DType::kInt8}, Access::kWrite);
  const TensorArg host_arg(host, "host", device_arg.view().dtype, Access::kWrite);
  const BlockArray device_blocks(device_arg.view(), "device");
  const BlockArray host_blocks(host_arg.view(), "host");
  require(host_blocks.block_bytes == device_blocks.block_bytes, [&] {
    return "host must have blocks of " + std::to_string(device_blocks.block_bytes) + " bytes, as device has, got " +
           std::to_string(host_blocks.block_bytes);
  });
  const py::gil_scoped_release release;
  return copy_blocks(plan.copies, device_blocks.block_bytes, device_blocks.memory, host_blocks.memory);
}

// One row of the numbers of an event: _Event of output_processor.pyx.
struct PackedEvent {
  std::uint64_t group_id;
  std::uint64_t sequence_id;
  std::int64_t token_id;    // -1: none
  std::int64_t sample_row;  // meaningful with a token
  std::int64_t score_row;   // meaningful with scores
  std::int64_t num_scores;
  std::int64_t finish_reason;  // -1: unfinished
  std::int64_t group_finished;
  std::int64_t kind;
  std::uint64_t parent_id;
  std::int64_t branch;
  double score;
};

py::bytes packed(const StepEvents& self) {
  // Written in place: the one copy.
  py::bytes bytes(nullptr, self.events.size() * sizeof(PackedEvent));
  char* out = PyBytes_AS_STRING(bytes.ptr());
  for (const SequenceEvent& e : self.events) {
    const PackedEvent row{.group_id = e.group_id,
                          .sequence_id = e.sequence_id,
                          .token_id = e.has_token ? e.token_id : -1,
                          .sample_row = e.sample_row,
                          .score_row = e.score_row,
                          .num_scores = e.num_scores,
                          .finish_reason = e.finished ? static_cast<std::int64_t>(e.finish_reason) : -1,
                          .group_finished = e.group_finished ? 1 : 0,
                          .kind = static_cast<std::int64_t>(e.kind),
                          .parent_id = e.parent_id,
                          .branch = e.branch,
                          .score = e.score};
    std::memcpy(out, &row, sizeof(row));
    out += sizeof(row);
  }
  return bytes;
}

void bind_events(py::module_& m) {
  py::class_<StepEvents>(m, "StepEvents")
      .def("__len__", [](const StepEvents& self) { return self.events.size(); })
      .def(
          "__iter__", [](const StepEvents& self) { return py::make_iterator(self.events.begin(), self.events.end()); },
          py::keep_alive<0, 1>())
      .def_property_readonly("packed", &packed);
}

// As arguments of SamplingParams; None without beams.
py::object beams_of(const SamplingParams& params) {
  if (!params.beam) {
    return py::none();
  }
  const BeamParams& beam = *params.beam;
  const py::object early_stopping = beam.early_stopping == EarlyStopping::kNever
                                        ? py::object(py::str("never"))
                                        : py::object(py::bool_(beam.early_stopping == EarlyStopping::kYes));
  return py::dict(py::arg("beam_width") = beam.width, py::arg("length_penalty") = beam.length_penalty,
                  py::arg("early_stopping") = early_stopping, py::arg("num_candidates") = beam.num_candidates,
                  py::arg("has_stop_strings") = beam.has_stop_strings);
}

void bind_request(py::module_& m) {
  py::class_<SamplingParams>(m, "SamplingParams")
      .def(py::init(&make_sampling_params), py::kw_only(), py::arg("temperature"), py::arg("top_p"), py::arg("top_k"),
           py::arg("min_p"), py::arg("seed"), py::arg("num_logprobs"), py::arg("presence_penalty") = 0.0F,
           py::arg("frequency_penalty") = 0.0F, py::arg("repetition_penalty") = 1.0F, py::arg("min_tokens") = 0,
           py::arg("logit_bias") = py::dict(), py::arg("allowed_token_ids") = py::none(),
           py::arg("end_token_ids") = py::tuple(), py::arg("bad_words") = py::tuple(),
           py::arg("num_prompt_logprobs") = py::none(), py::arg("beam_width") = py::none(),
           py::arg("length_penalty") = 1.0, py::arg("early_stopping") = false, py::arg("num_candidates") = 0,
           py::arg("has_stop_strings") = false)
      .def_property_readonly("scores_prompt",
                             [](const SamplingParams& params) { return params.num_prompt_logprobs.has_value(); })
      .def_property_readonly("beams", &beams_of);

  py::enum_<FinishReason>(m, "FinishReason")
      .value("STOP", FinishReason::kStop)
      .value("LENGTH", FinishReason::kLength)
      .value("ABORT", FinishReason::kAbort)
      .value("ERROR", FinishReason::kError)
      .value("DEADLINE", FinishReason::kDeadline)
      .value("QUEUE_TIMEOUT", FinishReason::kQueueTimeout);

  py::enum_<EventKind>(m, "EventKind")
      .value("SAMPLE", EventKind::kSample)
      .value("BEAM", EventKind::kBeam)
      .value("HYPOTHESIS", EventKind::kHypothesis)
      .value("RESULT", EventKind::kResult);

  py::class_<SequenceEvent>(m, "SequenceEvent")
      .def_readonly("kind", &SequenceEvent::kind)
      .def_readonly("group_id", &SequenceEvent::group_id)
      .def_readonly("sequence_id", &SequenceEvent::sequence_id)
      .def_readonly("parent_id", &SequenceEvent::parent_id)
      .def_readonly("branch", &SequenceEvent::branch)
      .def_readonly("score", &SequenceEvent::score)
      .def_property_readonly("token_id", [](const SequenceEvent& e) { return when(e.has_token, e.token_id); })
      .def_property_readonly("sample_row", [](const SequenceEvent& e) { return when(e.has_token, e.sample_row); })
      .def_property_readonly(
          "score_rows",
          [](const SequenceEvent& e) { return when(e.num_scores > 0, std::pair(e.score_row, e.num_scores)); })
      .def_property_readonly("finish_reason", [](const SequenceEvent& e) { return when(e.finished, e.finish_reason); })
      .def_readonly("group_finished", &SequenceEvent::group_finished);
}

}  // namespace

void bind_plan(py::module_& m) {
  bind_request(m);
  bind_events(m);

  py::class_<SchedulerOutput>(m, "SchedulerOutput")
      .def_property_readonly("scheduled", &scheduled_rows)
      .def_property_readonly("scheduled_sequences", &scheduled_sequences)
      .def_property_readonly("result_counts", &result_counts)
      .def_property_readonly("copies", &copy_rows)
      .def_readonly("preempted", &SchedulerOutput::preempted)
      .def_readonly("swapped_out", &SchedulerOutput::swapped_out)
      .def_readonly("swapped_in", &SchedulerOutput::swapped_in)
      .def_readonly("let_in", &SchedulerOutput::let_in)
      .def_readonly("cached", &SchedulerOutput::cached)
      .def_readonly("num_tokens", &SchedulerOutput::num_tokens)
      .def_readonly("num_samples", &SchedulerOutput::num_samples)
      .def_readonly("num_rows", &SchedulerOutput::num_rows)
      .def_readonly("num_results", &SchedulerOutput::num_results);

  py::class_<SchedulerStats>(m, "SchedulerStats", "What preemption and sharing have cost so far. Read-only.")
      .def_readonly("num_preemptions", &SchedulerStats::num_preemptions)
      .def_readonly("num_groups_swapped_out", &SchedulerStats::num_groups_swapped_out)
      .def_readonly("num_groups_swapped_in", &SchedulerStats::num_groups_swapped_in)
      .def_readonly("num_blocks_swapped_out", &SchedulerStats::num_blocks_swapped_out)
      .def_readonly("num_blocks_swapped_in", &SchedulerStats::num_blocks_swapped_in)
      .def_readonly("num_blocks_copied_on_write", &SchedulerStats::num_blocks_copied_on_write)
      .def_readonly("num_tokens_recomputed", &SchedulerStats::num_tokens_recomputed)
      .def_readonly("num_prefix_tokens_looked_up", &SchedulerStats::num_prefix_tokens_looked_up)
      .def_readonly("num_prefix_tokens_found", &SchedulerStats::num_prefix_tokens_found)
      .def_readonly("num_partial_prefix_blocks", &SchedulerStats::num_partial_prefix_blocks)
      .def_readonly("num_cached_blocks_evicted", &SchedulerStats::num_cached_blocks_evicted)
      .def_readonly("num_prefix_blocks_demoted", &SchedulerStats::num_prefix_blocks_demoted)
      .def_readonly("num_prefix_blocks_promoted", &SchedulerStats::num_prefix_blocks_promoted)
      .def_readonly("num_host_prefix_tokens_found", &SchedulerStats::num_host_prefix_tokens_found)
      .def_readonly("num_host_cached_blocks_evicted", &SchedulerStats::num_host_cached_blocks_evicted)
      .def_readonly("num_pins_released", &SchedulerStats::num_pins_released);

  py::class_<RequestCost>(m, "RequestCost", "What preemptions have cost one request. Read-only.")
      .def_readonly("num_preemptions", &RequestCost::num_preemptions)
      .def_readonly("num_tokens_recomputed", &RequestCost::num_tokens_recomputed)
      .def_readonly("num_blocks_swapped_out", &RequestCost::num_blocks_swapped_out)
      .def_readonly("num_blocks_swapped_in", &RequestCost::num_blocks_swapped_in);

  m.def("copy_blocks", &run_copies, py::arg("plan"), py::arg("device"), py::arg("host"),
        "Runs the plan's block copies in order; the bytes copied. Releases the GIL.");
}

}  // namespace fastpaged::bindings
