// What recording and replaying a scheduler take beside using it: contents of the prefix cache, and results of a step
// that no sampler made.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/handles.h"
#include "fastpaged/base/check.h"
#include "fastpaged/request/sampling_params.h"
#include "fastpaged/scheduler/scheduler.h"

namespace py = pybind11;

namespace fastpaged::bindings {
namespace {

using Candidates = std::vector<std::vector<std::pair<TokenId, float>>>;  // of each row

StepEvents update_rows(Scheduler& scheduler, const SchedulerOutput& plan, const std::vector<TokenId>& token_ids,
                       const std::vector<std::int32_t>& failed_rows, const Candidates& candidates) {
  std::vector<SampledToken> tokens;
  tokens.reserve(token_ids.size());
  for (const TokenId token_id : token_ids) {
    tokens.push_back({token_id, true});
  }
  for (const std::int32_t row : failed_rows) {
    require(row >= 0 && std::cmp_less(row, tokens.size()), [&] {
      return "failed_rows must name some of the " + std::to_string(tokens.size()) + " rows, got " + std::to_string(row);
    });
    tokens[static_cast<std::size_t>(row)].ok = false;
  }
  std::vector<std::int32_t> offsets;
  std::vector<TokenId> ids;
  std::vector<float> logprobs;
  if (!candidates.empty()) {
    offsets.push_back(0);
  }
  for (const auto& row : candidates) {
    for (const auto& [id, logprob] : row) {
      ids.push_back(id);
      logprobs.push_back(logprob);
    }
    offsets.push_back(static_cast<std::int32_t>(ids.size()));
  }
  return StepEvents{
      scheduler.update(plan, {.tokens = tokens, .top_offsets = offsets, .top_ids = ids, .top_logprobs = logprobs})};
}

// (blocks [n], parents [n], tokens [n, block_size]) of what is cached, in order of block. A parent is a block, or a
// root: -1, -2, ...
py::tuple cached_blocks(const Scheduler& scheduler) {
  const PrefixCache& cache = scheduler.kv_cache().prefix_cache();
  const BlockId num_blocks = cache.num_blocks();
  std::vector<BlockId> blocks;
  std::vector<PrefixCache::Node> parents;
  std::vector<TokenId> tokens;
  for (BlockId block = 0; block < num_blocks; ++block) {
    if (cache.holds(block)) {
      blocks.push_back(block);
      parents.push_back(cache.parent(block));
      const auto own = cache.tokens(block);
      tokens.insert(tokens.end(), own.begin(), own.end());
    }
  }
  const py::ssize_t size = std::ssize(blocks);
  const py::ssize_t block_size = scheduler.config().block_size;
  return py::make_tuple(py::array_t<std::int32_t>(size, blocks.data()), py::array_t<std::int32_t>(size, parents.data()),
                        py::array_t<std::int32_t>({size, block_size}, tokens.data()));
}

}  // namespace

void bind_recording(py::class_<Scheduler>& scheduler) {
  scheduler
      .def("update_rows", &update_rows, py::arg("plan"), py::arg("token_ids"),
           py::arg("failed_rows") = std::vector<std::int32_t>{}, py::arg("candidates") = Candidates{},
           py::call_guard<py::gil_scoped_release>())
      .def("cached_blocks", &cached_blocks);
}

}  // namespace fastpaged::bindings
