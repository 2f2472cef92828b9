// What the bindings pass between one another: small handles around core objects.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fastpaged/base/batch.h"
#include "fastpaged/base/thread_pool.h"
#include "fastpaged/ops/op_table.h"
#include "fastpaged/ops/params.h"
#include "fastpaged/request/sampling_params.h"
#include "fastpaged/scheduler/scheduler_output.h"

namespace fastpaged::bindings {

// One op table and one thread pool; shared by whatever is made from it.
struct CpuDevice {
  CpuDevice(const std::string& isa, int num_threads) : ops(op_table(isa)), pool(num_threads) {}
  const OpTable& ops;
  ThreadPool pool;
};

// A batch and its sampling rows; views into the BatchBuilder that made it.
struct BatchHandle {
  Batch batch;
  std::span<const SampleRequest> sample_requests;
};

inline std::optional<Activation> activation_of(const std::optional<std::string>& name) {
  return name ? std::optional(activation_from_name(*name)) : std::nullopt;
}

// What a step did, for Python to read one by one or, at every step of an engine, as plain numbers.
struct StepEvents {
  std::vector<SequenceEvent> events;
};

}  // namespace fastpaged::bindings
