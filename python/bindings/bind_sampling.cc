// Sampler and what it answers.
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
#include "bindings/handles.h"
#include "bindings/int_arg.h"
#include "bindings/step_thread.h"
#include "bindings/tensor_arg.h"
#include "fastpaged/sampling/philox.h"
#include "fastpaged/sampling/sampler.h"

namespace py = pybind11;

namespace fastpaged::bindings {
namespace {

// num_rows: that the requests are meant for; none if they say so themselves.
SamplerOutput sample_array(DeviceSampler& sampler, const py::object& logits, std::span<const SampleRequest> requests,
                           std::optional<std::int64_t> num_rows) {
  const TensorArg logits_arg(logits, "logits", DType::kFloat32);
  const TensorView& view = logits_arg.view();
  require(!num_rows || view.rank != 2 || view.shape[0] == *num_rows, [&] {
    return "logits must have " + std::to_string(*num_rows) + " rows, got " + std::to_string(view.shape[0]);
  });
  const py::gil_scoped_release release;
  return sampler.sample(view, requests);
}

SamplerOutput sample_batch(DeviceSampler& sampler, const py::object& logits, const BatchHandle& batch) {
  return sample_array(sampler, logits, batch.sample_requests, std::ssize(batch.batch.sample_rows));
}

void require_one_each(std::size_t count, const std::string& name, std::size_t num_params) {
  require(count == num_params, [&] {
    return name + " must have one entry per params, got " + std::to_string(count) + " for " +
           std::to_string(num_params);
  });
}

using Histories = std::vector<std::pair<std::vector<TokenId>, std::vector<TokenId>>>;  // (prompt, output) of each row

SamplerOutput sample_rows(DeviceSampler& sampler, const py::object& logits, const std::vector<SamplingParams>& params,
                          const std::vector<std::int64_t>& positions, std::optional<Histories> histories,
                          std::optional<std::vector<std::optional<TokenId>>> given,
                          const std::optional<std::vector<std::int32_t>>& rows,
                          const std::optional<std::vector<std::int32_t>>& sample_indices) {
  require_one_each(positions.size(), "positions", params.size());
  if (!histories) {
    histories.emplace(params.size());
  }
  require_one_each(histories->size(), "histories", params.size());
  if (!given) {
    given.emplace(params.size());
  }
  require_one_each(given->size(), "given", params.size());
  require_one_each(rows ? rows->size() : params.size(), "rows", params.size());
  require_one_each(sample_indices ? sample_indices->size() : params.size(), "sample_indices", params.size());
  std::vector<SampleRequest> requests;
  for (std::size_t i = 0; i < params.size(); ++i) {
    auto& [tokens, output] = (*histories)[i];
    tokens.insert(tokens.end(), output.begin(), output.end());
    requests.push_back({.params = params[i],
                        .position = positions[i],
                        .num_output_tokens = static_cast<std::int32_t>(output.size()),
                        .history = tokens,
                        .given = (*given)[i],
                        .row = rows ? (*rows)[i] : static_cast<std::int32_t>(i),
                        .sample_index = sample_indices ? (*sample_indices)[i] : 0});
  }
  return sample_array(sampler, logits, requests,
                      rows ? std::nullopt : std::optional<std::int64_t>(std::ssize(requests)));
}

template <typename T, typename Values, typename Field>
py::array_t<T> to_numpy(const Values& values, Field field) {
  py::array_t<T> array(static_cast<py::ssize_t>(values.size()));
  T* out = array.mutable_data();
  for (const auto& value : values) {
    *out++ = field(value);
  }
  array.attr("setflags")(py::arg("write") = false);
  return array;
}

std::vector<std::pair<std::int32_t, float>> top_logprobs(const SamplerOutput& output, std::int64_t row) {
  const auto num_rows = static_cast<std::int64_t>(output.tokens.size());
  require(row >= 0 && row < num_rows, [&] {
    return "row must be one of the " + std::to_string(num_rows) + " rows, from 0 on, got " + std::to_string(row);
  });
  std::vector<std::pair<std::int32_t, float>> alternatives;
  for (std::int32_t i = output.top_offsets[row]; i < output.top_offsets[row + 1]; ++i) {
    alternatives.emplace_back(output.top_ids[i], output.top_logprobs[i]);
  }
  return alternatives;
}

// Those of some rows that follow one another, as (logprobs [n], ranks [n], top_offsets [n + 1], top_ids, top_logprobs).
py::tuple scores(const SamplerOutput& output, std::int64_t first_row, std::int64_t num_rows) {
  const auto all_rows = static_cast<std::int64_t>(output.tokens.size());
  require(first_row >= 0 && num_rows >= 0 && num_rows <= all_rows - first_row, [&] {
    return "first_row and num_rows must name some of the " + std::to_string(all_rows) + " rows, got " +
           std::to_string(first_row) + " and " + std::to_string(num_rows);
  });
  const auto copy = []<typename T>(const std::vector<T>& values, std::int64_t first, std::int64_t count, T less = 0) {
    const std::span<const T> wanted =
        std::span(values).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    return to_numpy<T>(wanted, [less](T value) { return static_cast<T>(value - less); });
  };
  const std::int32_t top = output.top_offsets[first_row];
  const std::int32_t num_top = output.top_offsets[first_row + num_rows] - top;
  return py::make_tuple(copy(output.logprobs, first_row, num_rows), copy(output.ranks, first_row, num_rows),
                        copy(output.top_offsets, first_row, num_rows + 1, top), copy(output.top_ids, top, num_top),
                        copy(output.top_logprobs, top, num_top));
}

void bind_output(py::module_& m) {
  py::class_<SamplerOutput>(m, "SamplerOutput", "A row for each score and draw of the plan. Read-only copies.")
      .def_property_readonly("token_ids",
                             [](const SamplerOutput& output) {
                               return to_numpy<std::int32_t>(output.tokens,
                                                             [](const SampledToken& token) { return token.token_id; });
                             })
      .def_property_readonly("ok",
                             [](const SamplerOutput& output) {
                               return to_numpy<bool>(output.tokens, [](const SampledToken& token) { return token.ok; });
                             })
      .def_property_readonly("logprobs",
                             [](const SamplerOutput& output) {
                               return to_numpy<float>(output.logprobs, [](float logprob) { return logprob; });
                             })
      .def_property_readonly("ranks",
                             [](const SamplerOutput& output) {
                               return to_numpy<std::int32_t>(output.ranks, [](std::int32_t rank) { return rank; });
                             })
      .def("scores", &scores, py::arg("first_row"), py::arg("num_rows"),
           "(logprobs, ranks, top_offsets, top_ids, top_logprobs) of some rows that follow one another.")
      .def("top_logprobs", &top_logprobs, py::arg("row"),
           "(token_id, logprob), best first; empty unless the request asked.");
}

}  // namespace

void bind_sampling(py::module_& m) {
  bind_output(m);
  py::class_<StepThread>(m, "StepThread", "Carries out one step at a time beside the caller: ModelGraph.start().")
      .def(py::init<>())
      .def("finish", &StepThread::finish,
           "Waits for the step; what it sampled. Raises what it raised. Releases the GIL.");
  py::class_<DeviceSampler>(m, "Sampler", "Logits to tokens and logprobs; one call at a time.")
      .def(py::init<std::shared_ptr<CpuDevice>>(), py::arg("device").none(false))
      .def("sample", &sample_batch, py::arg("logits"), py::arg("batch"),
           "Uses the sampling params the builder kept beside the batch. Releases the GIL.")
      .def("sample_rows", &sample_rows, py::arg("logits"), py::arg("params"), py::arg("positions"),
           py::arg("histories") = py::none(), py::arg("given") = py::none(), py::arg("rows") = py::none(),
           py::arg("sample_indices") = py::none(),
           "The same for requests of no batch: params and position of each, the tokens before it, prompt and output, "
           "the token whose logprobs are wanted, or None to sample one, the row it looks at (its own place, if None is "
           "given), and which of its request's samples it is (0). Releases the GIL.");
  m.def(
      "mix_seed",
      [](const py::object& seed, const py::object& sample_index) {
        return mix(int_arg<std::uint64_t>(seed, "seed"), int_arg<std::uint64_t>(sample_index, "sample_index"));
      },
      py::arg("seed"), py::arg("sample_index"),
      "The seed of a request's sample: a request of its own with that seed draws the same.");
}

}  // namespace fastpaged::bindings
