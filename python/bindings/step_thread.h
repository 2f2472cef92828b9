// A batch's forward pass and its sampling, in the background.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bindings/handles.h"
#include "fastpaged/base/background_thread.h"
#include "fastpaged/base/tensor_view.h"
#include "fastpaged/sampling/sampler.h"

namespace fastpaged::bindings {

// A sampler that keeps its device's thread pool alive.
class DeviceSampler {
 public:
  explicit DeviceSampler(std::shared_ptr<CpuDevice> device)
      : device_(std::move(device)), sampler_(device_->pool, *device_->ops.logit_passes) {}

  SamplerOutput sample(const TensorView& logits, std::span<const SampleRequest> requests) {
    return sampler_.sample(logits, requests);
  }

 private:
  std::shared_ptr<CpuDevice> device_;
  Sampler sampler_;
};

// One step at a time. The work itself touches no Python object; `kept` are those whose memory it uses.
class StepThread {
 public:
  template <typename Work>
  void start(std::vector<pybind11::object> kept, Work work) {
    thread_.start([this, work = std::move(work)] { result_ = work(); });
    kept_ = std::move(kept);
  }
  SamplerOutput finish() {
    {
      const pybind11::gil_scoped_release release;
      thread_.finish();
    }
    kept_.clear();
    return std::move(result_);
  }

 private:
  std::vector<pybind11::object> kept_;  // let go after the thread, which may be at work until then
  SamplerOutput result_;
  BackgroundThread thread_;
};

}  // namespace fastpaged::bindings
