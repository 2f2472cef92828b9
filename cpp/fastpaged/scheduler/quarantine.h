// Quarantine: what was found wrong after a broken invariant, and who had to go for it.
#pragma once

#include <string>
#include <vector>

#include "fastpaged/base/types.h"
#include "fastpaged/scheduler/scheduler_output.h"

namespace fastpaged {

struct Quarantine {
  std::vector<std::string> found;  // a line for each thing that was wrong; empty: nothing was, and nothing has changed
  std::vector<GroupId> failed;     // requests that have gone for it, whole, with no event
  std::vector<SequenceEvent> events;  // of the others, from an update() that threw
};

}  // namespace fastpaged
