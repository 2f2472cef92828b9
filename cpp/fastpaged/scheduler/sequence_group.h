// SequenceGroup: one request with its branches, scheduled, preempted and ended as one.
#pragma once

#include <cstdint>
#include <vector>

#include "fastpaged/base/types.h"
#include "fastpaged/request/sampling_params.h"
#include "fastpaged/request/stopping.h"
#include "fastpaged/scheduler/sequence.h"

namespace fastpaged {

enum class GroupState : std::uint8_t { kWaiting, kRunning };

struct SequenceGroup {
  GroupId id = 0;
  std::int64_t arrival = 0;  // unique: who came first
  SamplingParams sampling;
  StopConditions stop;
  GroupState state = GroupState::kWaiting;
  std::vector<Sequence> sequences;  // one until parallel sampling comes
  std::int64_t num_preemptions = 0;
};

}  // namespace fastpaged
