// The tables of the x86 kernels. Callable anywhere; what they point to, only where cpu_features() allows.
#pragma once

#include "fastpaged/base/thread_pool.h"
#include "fastpaged/ops/op_table.h"
#include "fastpaged/ops/params.h"

namespace fastpaged::cpu {

namespace avx2 {
OpTable table();
const LogitPasses& logit_passes();
}  // namespace avx2

namespace avx512 {
OpTable table();
const LogitPasses& logit_passes();
// The linear op without its check. REQUIRES: valid params, a weight from pack_panels (weight_panels.h).
void multiply_panels(const LinearParams& params, ThreadPool& pool);
}  // namespace avx512

// The avx512 table, but for the linear layers and attention in bfloat16.
OpTable amx_table();
OpTable amx_emulated_table();

}  // namespace fastpaged::cpu
