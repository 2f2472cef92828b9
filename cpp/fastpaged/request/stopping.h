// When a request ends, and how that is said.
#pragma once

#include <cstdint>
#include <vector>

#include "fastpaged/base/types.h"

namespace fastpaged {

enum class FinishReason : std::uint8_t {
  kStop,          // an end token or a stop string
  kLength,        // max_tokens, the model's limit, or the end of the KV pool
  kAbort,         // the user's wish
  kError,         // this request's own computation failed (NaN logits, or no token is left to choose)
  kDeadline,      // its time was up; it keeps the tokens it has
  kQueueTimeout,  // it was not let in within its time, and never ran
};

struct StopConditions {
  std::int32_t max_tokens = 0;          // > 0
  std::vector<TokenId> stop_token_ids;  // sorted; end tokens (none under ignore_eos) and the request's own
};

}  // namespace fastpaged
