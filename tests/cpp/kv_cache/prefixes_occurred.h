// What a PrefixWorld counts, and what it knows of a request.
#pragma once

#include <cstdint>

#include "fastpaged/kv_cache/prefix_match.h"
#include "kv_cache/slow_text.h"

namespace fastpaged::test {

struct PrefixesOccurred {
  int lookups, whole, partial, revived, no_room_for_a_copy, crowded, published, duplicates, evicted,
      forgotten_by_writing, forgotten_with_it, forks, swaps, recomputed, resets;
  int on_host, partial_on_host, demoted, promoted, taken_as_copies, taken_over, not_copied, host_evicted, lost,
      forgotten_as_doubtful;
};

struct PrefixRequest {
  SlowText text;
  std::int32_t num_computed = 0;
  bool known = false;  // since which reset it is computed
  bool stale = false;  // since one that is not the last
  PublishedPrefix published;
};

}  // namespace fastpaged::test
