// One step of planning: schedule() and build(), timed without update(), which has a row of its own.
#include "fastpaged/scheduler/scheduler.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks.h"
#include "load.h"

namespace fastpaged::bench {

namespace {

// Contexts grow by a token a step: from half of this below the wanted length to half above it, then all begins anew,
// outside the time that counts.
constexpr std::int32_t kStepsPerLoad = 128;
constexpr std::int32_t kLoadsPerRepetition = 5;

std::int32_t blocks_for(std::int32_t num_tokens) {
  return (num_tokens + kBlockSize - 1) / kBlockSize;
}

// Everybody decodes; each step an even share of the sequences (their prompts end everywhere in a block) takes a block.
std::unique_ptr<Load> steady_decode(std::int32_t num_sequences, std::int32_t context) {
  const std::int32_t longest = context + kStepsPerLoad;
  SchedulerConfig config;
  config.block_size = kBlockSize;
  config.prefix_caching = true;  // as the engine has it
  config.num_blocks = num_sequences * blocks_for(longest) * 11 / 10;
  config.max_num_seqs = num_sequences;
  config.max_num_batched_tokens = num_sequences * longest;  // one step for all prompts
  config.max_model_len = 2 * longest;
  auto load = std::make_unique<Load>(config);
  for (std::int32_t i = 0; i < num_sequences; ++i) {
    load->add(i, context - kStepsPerLoad / 2 - i % kBlockSize, longest);
  }
  load->step();
  return load;
}

double median_of(std::vector<double>& times) {
  const auto median = times.begin() + std::ssize(times) / 2;
  std::nth_element(times.begin(), median, times.end());
  return *median;
}

// A step takes microseconds, a repetition milliseconds: the mean of one would count who else wanted the processor.
void report_median(benchmark::State& state, std::vector<double>& times) {
  state.counters["median_us"] = median_of(times) * 1e6;
}

enum class Part : std::uint8_t { kPlan, kUpdate };

void decode(benchmark::State& state, Part part, std::int32_t num_sequences, std::int32_t context) {
  std::unique_ptr<Load> load;
  std::int32_t step = 0;
  std::vector<double> step_times;
  for ([[maybe_unused]] auto iteration : state) {
    if (step++ % kStepsPerLoad == 0) {
      load = steady_decode(num_sequences, context);
    }
    const StepTimes times = load->step();
    step_times.push_back(part == Part::kPlan ? times.plan_s : times.update_s);
    state.SetIterationTime(step_times.back());
    if (times.preempts || load->scheduler().num_running() != num_sequences) {
      state.SkipWithError("not a steady decode: somebody does not run");
    }
  }
  report_median(state, step_times);
}

// More than 256 requests in a pool that they fill to the last block, so that every few steps the youngest has to go.
// Every 16 steps some end, and those that went come back.
constexpr std::int32_t kNumRequests = 320;
constexpr std::int32_t kLeastRunning = 256;

std::unique_ptr<Load> full_pool(PreemptionMode mode) {
  constexpr std::int32_t kContext = 1024;
  constexpr std::int32_t kEndsTogether = 4;
  SchedulerConfig config;
  config.block_size = kBlockSize;
  config.prefix_caching = true;  // as the engine has it
  config.num_blocks = kNumRequests * blocks_for(kContext - kStepsPerLoad / 2) + kNumRequests / kBlockSize;
  config.num_host_blocks = mode == PreemptionMode::kSwap ? config.num_blocks : 0;
  config.max_num_seqs = kNumRequests;
  config.max_num_batched_tokens = kNumRequests * kContext;
  config.max_model_len = 2 * kContext;
  config.policy.preemption_mode = mode;
  config.policy.watermark = 0.0;  // or the prompts would not fill the pool
  auto load = std::make_unique<Load>(config);
  for (std::int32_t i = 0; i < kNumRequests; ++i) {
    const std::int32_t max_tokens = 2 + kBlockSize * (i / kEndsTogether + 1);
    load->add(i, kContext - kStepsPerLoad / 2 - i % kBlockSize, max_tokens);
  }
  load->step();
  return load;
}

// The same 128 steps again and again: what a step takes is the median of its times, and the slowest step the one whose
// median is the largest; what an interrupt added once does not count.
double slowest_step(std::vector<std::vector<double>>& times_of_steps) {
  double slowest = 0.0;
  for (std::vector<double>& times : times_of_steps) {
    slowest = std::max(slowest, median_of(times));
  }
  return slowest;
}

void decode_with_preemption(benchmark::State& state, PreemptionMode mode) {
  std::vector<std::vector<double>> times_of_steps(kStepsPerLoad);
  std::vector<double> step_times;
  std::unique_ptr<Load> load;
  std::int64_t step = 0;
  std::int64_t num_preempting = 0;
  for ([[maybe_unused]] auto iteration : state) {
    const std::int64_t index = step++ % kStepsPerLoad;
    if (index == 0) {
      load = full_pool(mode);
    }
    const StepTimes times = load->step();
    state.SetIterationTime(times.plan_s);
    times_of_steps[index].push_back(times.plan_s);
    step_times.push_back(times.plan_s);
    num_preempting += times.preempts ? 1 : 0;
    if (load->scheduler().num_running() < kLeastRunning) {
      state.SkipWithError("fewer sequences run than the row says");
    }
  }
  report_median(state, step_times);
  state.counters["max_us"] = slowest_step(times_of_steps) * 1e6;
  state.counters["preempting_share"] = static_cast<double>(num_preempting) / static_cast<double>(step);
  state.counters["swapped_in"] = static_cast<double>(load->scheduler().stats().num_groups_swapped_in);
  state.counters["recomputed"] = static_cast<double>(load->scheduler().stats().num_tokens_recomputed);
}

// One request holds a large share of the pool while many short ones grow and half of them are preempted. When it ends,
// a hundred and more come back in one step: that step is what is timed.
constexpr std::int32_t kLeastReturning = 100;

void return_together(benchmark::State& state, PreemptionMode mode, bool prefix_caching) {
  constexpr std::int32_t kLongPrompt = 16384;
  constexpr std::int32_t kShortPrompt = 64;
  constexpr std::int32_t kNumShort = 400;
  constexpr std::int32_t kNumSteps = 64;
  SchedulerConfig config;
  config.block_size = kBlockSize;
  config.prefix_caching = prefix_caching;  // if so, each looks for its prefix, and takes blocks that others left
  config.num_blocks = blocks_for(kLongPrompt) + kNumShort * blocks_for(kShortPrompt);
  config.num_host_blocks = mode == PreemptionMode::kSwap ? config.num_blocks : 0;
  config.max_num_seqs = kNumShort + 1;
  config.max_num_batched_tokens = 2 * (kLongPrompt + kNumShort * kShortPrompt);
  config.max_model_len = 2 * kLongPrompt;
  config.policy.preemption_mode = mode;
  std::int64_t num_returned = 0;
  std::vector<double> step_times;
  for ([[maybe_unused]] auto iteration : state) {
    Load load(config);
    load.add(0, kLongPrompt, kNumSteps);
    for (std::int32_t i = 1; i <= kNumShort; ++i) {
      load.add(i, kShortPrompt - i % kBlockSize, 4 * kNumSteps);
    }
    for (std::int32_t step = 0; step < kNumSteps; ++step) {
      load.step();
    }
    const std::int32_t num_out = kNumShort - load.scheduler().num_running();
    step_times.push_back(load.step().plan_s);
    state.SetIterationTime(step_times.back());
    num_returned = num_out - (kNumShort - load.scheduler().num_running());
    if (num_returned < kLeastReturning || load.scheduler().num_running() < kLeastRunning) {
      state.SkipWithError("too few came back for this row");
    }
  }
  report_median(state, step_times);
  state.counters["returned"] = static_cast<double>(num_returned);
}

std::string numbered(std::string name, std::int32_t number) {
  name += std::to_string(number);
  return name;
}

template <typename Function, typename... Arguments>
void add(const std::string& name, std::int64_t iterations, const Function& function, const Arguments&... arguments) {
  benchmark::RegisterBenchmark(name.c_str(), function, arguments...)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(iterations);
}

}  // namespace

void register_scheduler() {
  constexpr std::int64_t kIterations = kStepsPerLoad * kLoadsPerRepetition;
  for (const std::int32_t num_sequences : {1, 64, 256, 1024}) {
    add(numbered("schedule_and_build/", num_sequences), kIterations, decode, Part::kPlan, num_sequences, 1024);
  }
  for (const std::int32_t context : {128, 1024, 8192}) {
    add(numbered("schedule_and_build/256/context:", context), kIterations, decode, Part::kPlan, 256, context);
  }
  add("update/256", kIterations, decode, Part::kUpdate, 256, 1024);
  add("schedule_and_build_with_preemption/256/swap", kIterations, decode_with_preemption, PreemptionMode::kSwap);
  add("schedule_and_build_with_preemption/256/recompute", kIterations, decode_with_preemption,
      PreemptionMode::kRecompute);
  constexpr std::int64_t kReturns = 20;
  for (const bool prefix_caching : {false, true}) {
    const std::string end = prefix_caching ? "/return/cached" : "/return";
    add("schedule_and_build_with_preemption/256/swap" + end, kReturns, return_together, PreemptionMode::kSwap,
        prefix_caching);
    add("schedule_and_build_with_preemption/256/recompute" + end, kReturns, return_together, PreemptionMode::kRecompute,
        prefix_caching);
  }
}

}  // namespace fastpaged::bench
