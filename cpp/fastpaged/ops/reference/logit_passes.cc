#include "fastpaged/ops/logit_passes.h"

namespace fastpaged {
namespace {

constexpr int kLanes = 4;  // what every target has (SSE2, NEON)

#include "fastpaged/ops/logit_loops.h"

}  // namespace

const LogitPasses scalar_logit_passes = {.block_maxima = &block_maxima, .weigh = &weigh, .count_from = &count_from};

}  // namespace fastpaged
