// Ground types of every floor. No logic lives here.
#pragma once

#include <cstdint>

namespace fastpaged {

using TokenId = std::int32_t;
using BlockId = std::int32_t;      // index of a KV block inside one pool
using SequenceId = std::uint64_t;  // one decoding branch
using GroupId = std::uint64_t;     // one request: its branches live and die together

}  // namespace fastpaged
